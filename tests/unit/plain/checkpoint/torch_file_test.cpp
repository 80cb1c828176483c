#include "dtrain/checkpoint/format/torch_file.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::format::torch_file_test {
namespace {

using base::ErrorKind;
using dtrain::testing::message_of;
using dtrain::testing::Names;

template <typename T>
std::string little(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

struct Entry {
  std::string name;
  std::string bytes;
};

std::string sizes_of(const Entry& entry) {
  const auto size = static_cast<std::uint32_t>(entry.bytes.size());
  return little(std::uint32_t{0}) + little(size) + little(size) +
         little(static_cast<std::uint16_t>(entry.name.size())) + little(std::uint16_t{0});
}

/// A zip archive without compression.
std::string archive_of(const std::vector<Entry>& entries) {
  std::string file;
  std::string directory;
  for (const Entry& entry : entries) {
    const auto offset = static_cast<std::uint32_t>(file.size());
    file += "PK\3\4" + std::string(10, '\0') + sizes_of(entry) + entry.name + entry.bytes;
    directory += "PK\1\2" + std::string(12, '\0') + sizes_of(entry) + std::string(10, '\0') +
                 little(offset) + entry.name;
  }
  const auto count = static_cast<std::uint16_t>(entries.size());
  return file + directory + "PK\5\6" + std::string(4, '\0') + little(count) + little(count) +
         little(static_cast<std::uint32_t>(directory.size())) +
         little(static_cast<std::uint32_t>(file.size())) + std::string(2, '\0');
}

std::string text(const std::string& value) {
  return "X" + little(static_cast<std::uint32_t>(value.size())) + value;
}

std::string small(int value) { return {'K', static_cast<char>(value)}; }

/// The entry of a matrix in a dictionary.
std::string matrix(const std::string& name, int offset, std::array<int, 2> shape,
                   std::array<int, 2> strides) {
  return text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
         "ctorch\nFloatStorage\n" + text("0") + text("cpu") + small(6) + "tQ" + small(offset) +
         small(shape[0]) + small(shape[1]) + "\x86" + small(strides[0]) + small(strides[1]) +
         "\x86\x89NtR";
}

/// Two matrices over the same six floats, beside a value that is none.
std::string example(const std::string& more = "") {
  const std::string pickle = "\x80\x02}(" + matrix("rows", 0, {2, 3}, {3, 1}) +
                             matrix("columns", 1, {2, 2}, {1, 2}) + text("step") + small(3) + more +
                             "u.";
  std::string floats;
  for (int i = 0; i < 6; ++i) floats += little(static_cast<float>(i));
  return archive_of(
      {{"any/data.pkl", pickle}, {"any/byteorder", "little"}, {"any/data/0", floats}});
}

TorchWeights read(const std::string& file) {
  return read_torch_file(std::as_bytes(std::span(file)), "the file");
}

std::string refusal(const std::string& file) {
  const std::string message = message_of(ErrorKind::checkpoint, [&] { std::ignore = read(file); });
  CHECK_THAT(message, Names("the file"));
  return message;
}

TEST_CASE("Tensors of torch.save are views of their storages") {
  const std::string file = example();
  CHECK(is_torch_file(std::as_bytes(std::span(file))));
  const TorchWeights weights = read(file);
  CHECK(weights.key.empty());
  CHECK(weights.skipped == std::vector<std::string>{"step"});
  REQUIRE(weights.tensors.size() == 2);
  const TensorView& rows = weights.tensors[0];
  CHECK(rows.name == "rows");
  CHECK(rows.shape == std::vector<std::int64_t>{2, 3});
  CHECK(rows.bytes.size() == 24);
  const TensorView& columns = weights.tensors[1];
  CHECK(columns.strides == std::vector<std::int64_t>{1, 2});
  CHECK(value_at(columns.dtype, columns.bytes.data()) == 1);
  CHECK(columns.bytes.size() == 16);  // from element 1 to element 4
}

TEST_CASE("A tensor beyond its storage is refused by name") {
  CHECK_THAT(refusal(example(matrix("high", 0, {3, 3}, {3, 1}))), Names("'high'"));
  CHECK_THAT(refusal(example(matrix("late", 6, {1, 1}, {1, 1}))), Names("'late'"));
  CHECK_NOTHROW(std::ignore = read(example(matrix("empty", 6, {0, 9}, {9, 9}))));
}

TEST_CASE("A pickle that names code is refused and nothing is run") {
  const std::string call = text("model") + "cposix\nsystem\n" + text("exit 1") + "\x85R";
  CHECK_THAT(refusal(example(call)), Names("'posix system'", "'model'"));
}

TEST_CASE("Whatever is done to a file of torch.save, what is read fits its memory or is refused") {
  const std::string whole = example();
  std::mt19937_64 random(20'260'811);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole.substr(0, whole.size() - (round % 4 == 0 ? random() % 200 : 0));
    const std::uint64_t num_changes = 1 + random() % 4;
    for (std::uint64_t i = 0; i < num_changes; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    try {
      unsigned sum = 0;
      for (const TensorView& tensor : read(damaged).tensors) {
        for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
      }
      CHECK(sum <= 255U * 3 * damaged.size());
    } catch (const base::Error& error) {
      if (error.kind() != ErrorKind::checkpoint) FAIL(error.what());
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace dtrain::checkpoint::format::torch_file_test
