#include "provenance.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "commit.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

// The command line as typed, including the program name.
std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

// Replaces invalid UTF-8, so that a run does not fail because of its record.
std::string json_text(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string version_text() { return fmt::format("{} (commit {})", DTRAIN_VERSION, kCommit); }

std::string provenance(std::int64_t ranks, const base::RankEnv& env) {
  utsname machine{};
  ::uname(&machine);
  std::error_code error;
  nlohmann::ordered_json object{{"version", DTRAIN_VERSION},
                                {"commit", kCommit},
                                {"command_line", command_line()},
                                {"directory", std::filesystem::current_path(error).string()},
                                {"host", machine.nodename},
                                {"cpu", cpu_model()},
                                {"started", now()},
                                {"ranks", ranks}};
  if (!env.launch.empty()) {
    object.update({{"launch", env.launch}, {"restarts", env.restart_count}});
  }
  if (!env.restart_reason.empty()) object["restart_reason"] = env.restart_reason;
  return json_text(object);
}

std::string doctor_record() {
  const auto plugins = RuntimeLibrary::plugins();
  return json_text(
      {{"version", DTRAIN_VERSION},
       {"commit", kCommit},
       {"cpu", cpu_model()},
       {"plugins", plugins.empty() ? "none" : fmt::format("{}", fmt::join(plugins, ", "))},
       {"gpus", RuntimeLibrary::num_gpus()}});
}

}  // namespace dtrain::app
