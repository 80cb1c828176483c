#include "dtrain/checkpoint/format/internal/torch_file.h"

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
  std::uint32_t crc = 0;
};

std::string sizes_of(const Entry& entry) {
  const auto size = static_cast<std::uint32_t>(entry.bytes.size());
  return little(entry.crc) + little(size) + little(size) +
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

std::string sizes(const std::vector<int>& values) {
  std::string tuple = "(";
  for (const int value : values) tuple += small(value);
  return tuple + "t";
}

/// The entry of a tensor in a dictionary.
std::string tensor(const std::string& name, int offset, const std::vector<int>& shape,
                   const std::vector<int>& strides, const std::string& metadata = "") {
  return text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
         "ctorch\nFloatStorage\n" + text("0") + text("cpu") + small(6) + "tQ" + small(offset) +
         sizes(shape) + sizes(strides) + "\x89N" + metadata + "tR";
}

std::string six_floats() {
  std::string floats;
  for (int i = 0; i < 6; ++i) floats += little(static_cast<float>(i));
  return floats;
}

/// Two matrices over the same six floats, and a value that is not a tensor. `more` adds entries to
/// the dictionary, `entries` to the archive.
std::string example(const std::string& more = "", const std::vector<Entry>& entries = {}) {
  const std::string pickle = "\x80\x02}(" + tensor("rows", 0, {2, 3}, {3, 1}) +
                             tensor("columns", 1, {2, 2}, {1, 2}) + text("step") + small(3) + more +
                             "u.";
  std::vector<Entry> all{
      {"any/data.pkl", pickle}, {"any/byteorder", "little"}, {"any/data/0", six_floats()}};
  all.insert(all.end(), entries.begin(), entries.end());
  return archive_of(all);
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

TEST_CASE("A tensor beyond its storage is rejected by name") {
  CHECK_THAT(refusal(example(tensor("high", 0, {3, 3}, {3, 1}))), Names("'high'"));
  CHECK_THAT(refusal(example(tensor("late", 6, {1, 1}, {1, 1}))), Names("'late'"));
  CHECK_NOTHROW(std::ignore = read(example(tensor("empty", 6, {0, 9}, {9, 9}))));
}

TEST_CASE("A pickle that names code is rejected without running it") {
  const std::string call = text("model") + "cposix\nsystem\n" + text("exit 1") + "\x85R";
  CHECK_THAT(refusal(example(call)), Names("'posix system'", "'model'"));
}

TEST_CASE("A tensor whose metadata changes its values is rejected by name") {
  const std::string negated = "}" + text("neg") + "\x88s";
  CHECK_THAT(refusal(example(tensor("minus", 0, {2, 3}, {3, 1}, negated))), Names("'minus'"));
  CHECK_NOTHROW(std::ignore = read(example(tensor("plain", 0, {2, 3}, {3, 1}, "}"))));
  CHECK_NOTHROW(std::ignore = read(example(tensor("none", 0, {2, 3}, {3, 1}, "N"))));
}

TEST_CASE("Settings under a model's key are not taken for a model") {
  const std::string settings = text("model") + "}" + text("width") + small(6) + "s";
  CHECK(read(example(settings)).key.empty());
  const std::string weights = "}(" + tensor("inner", 0, {2, 3}, {3, 1}) + "u";
  CHECK(read(example(settings + text("state_dict") + weights)).key == "state_dict");
  CHECK_THAT(refusal(example(text("module") + weights + text("state_dict") + weights)),
             Names("'module'", "'state_dict'"));
}

TEST_CASE("Tensors beside the state dictionary are named") {
  const std::string rows = tensor("inner", 0, {2, 3}, {3, 1});
  const std::string state = text("state_dict") + "}(" + rows + "u";
  const TorchWeights weights = read(example(state + text("average") + "}(" + rows + "u"));
  CHECK(weights.tensors.size() == 1);
  CHECK(weights.beside == std::vector<std::string>{"rows", "columns", "average"});
  CHECK(read(example()).beside.empty());
}

TEST_CASE("A tensor under a key that is no text is refused") {
  const std::string named = tensor("rows", 0, {2, 3}, {3, 1});
  const std::string value = named.substr(text("rows").size());
  CHECK_THAT(refusal(example(small(5) + value)), Names("5"));
  CHECK_NOTHROW(std::ignore = read(example(small(5) + small(6))));
}

TEST_CASE("A compiled module is refused by its class") {
  const std::string module = text("model") + "ctorch._dynamo.eval_frame\nOptimizedModule\n)\x81";
  CHECK_THAT(refusal(example(module)), Names("torch._dynamo.eval_frame OptimizedModule"));
}

TEST_CASE("An ambiguous archive is rejected") {
  CHECK_THAT(refusal(example() + example()), Names("the file"));
  CHECK_THAT(refusal(example("", {{"any/data/0", six_floats()}})), Names("'any/data/0'"));
  CHECK_THAT(refusal(example("", {{"other/data.pkl", "\x80\x02}."}})), Names("data.pkl"));
  CHECK_THAT(refusal(example(tensor("rows", 0, {2, 3}, {3, 1}))), Names("'rows'"));
}

TEST_CASE("A small file that would need much memory is rejected") {
  const auto repeated = [](const std::string& part, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += part;
    return all;
  };
  CHECK_THAT(refusal(example(text("list") + "(" + std::string(5'000'000, 'N') + "l")),
             Names("4194304"));
  const std::string name = text(std::string(600'000, 'a')) + "q\1";
  CHECK_THAT(refusal(example(text("list") + "(" + name + repeated("h\1h\1\x93", 100) + "l")),
             Names("1048576"));
  CHECK_THAT(refusal(example(tensor(std::string(65'537, 'a'), 0, {2, 3}, {3, 1}))),
             Names("65537", "65536"));
  const std::vector<int> ones(65, 1);
  CHECK_THAT(refusal(example(tensor("deep", 0, ones, ones))), Names("'deep'"));
}

TEST_CASE("An archive entry with a wrong checksum is rejected by name") {
  const auto verify = [](const std::string& file) {
    return verify_torch_file(std::as_bytes(std::span(file)), "the file");
  };
  // The standard check value of CRC-32.
  constexpr std::uint32_t kOfDigits = 0xcbf43926;
  CHECK(verify(archive_of({{"any/data/0", "123456789", kOfDigits}, {"any/empty", ""}})));
  CHECK_FALSE(verify(archive_of({{"any/data/0", "123456789"}})));
  const std::string damaged =
      archive_of({{"any/data.pkl", "unchecked"}, {"any/data/0", "123456780", kOfDigits}});
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { std::ignore = verify(damaged); }),
             Names("the file", "any/data/0", "cbf43926"));
}

TEST_CASE("A corrupted torch.save file is rejected or yields tensors within its memory") {
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
