// The entry of the shared library, for programs that open it.
#include <charconv>
#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "support/fake_device/fake_device.h"
#include "support/fake_device/faults.h"

namespace dtrain::testing::fake {
namespace {

struct Settings {
  Options options;
  std::optional<std::uint64_t> memory;
  std::optional<std::uint64_t> lose_after;
  std::uint64_t error_code = kUncorrectable;
  std::optional<std::uint64_t> device;
};

std::uint64_t number_in(const std::string& word) {
  const char* const begin = word.data() + word.find('=') + 1;
  const char* const end = word.data() + word.size();
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) throw std::invalid_argument(word + ": not a number");
  return number;
}

void read(const std::string& word, Settings& settings) {
  if (word == "late") {
    settings.options.execution = Execution::late;
  } else if (word == "races-are-errors") {
    settings.options.races_are_errors = true;
  } else if (word.starts_with("seed=")) {
    settings.options.seed = number_in(word);
  } else if (word.starts_with("queues=")) {
    settings.options.queues = number_in(word);
  } else if (word.starts_with("memory=")) {
    settings.memory = number_in(word);
  } else if (word.starts_with("lose-after=")) {
    settings.lose_after = number_in(word);
  } else if (word.starts_with("error=")) {
    settings.error_code = number_in(word);
  } else if (word.starts_with("device=")) {
    settings.device = number_in(word);
  } else {
    throw std::invalid_argument("the fake device has no setting " + word);
  }
}

void open(const std::string& text) {
  Settings settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) read(word, settings);
  install();
  set_options(settings.options);
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    if (settings.device.value_or(static_cast<std::uint64_t>(device)) !=
        static_cast<std::uint64_t>(device)) {
      continue;
    }
    limit_memory(device, settings.memory);
    lose_device_after(device, settings.lose_after, static_cast<int>(settings.error_code));
  }
}

}  // namespace
}  // namespace dtrain::testing::fake

const char* dtrain_fake_device_open(const char* settings) {
  static std::string error;
  try {
    dtrain::testing::fake::open(settings);
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}
