#include "dtrain/checkpoint/format/safetensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "support/messages.h"
#include "support/safetensors.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::format::safetensors_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using dtrain::testing::write_safetensors;

/// Builds a file from its header's text and zero data, independently from the format's
/// documentation.
std::string file_of(const std::string& header, std::size_t num_data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + header + std::string(num_data_bytes, 'd');
}

std::string refusal(const std::string& path) {
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { std::ignore = SafetensorsFile::open(path); });
  CHECK_THAT(message, Contains(path));
  return message;
}

template <typename Value>
TensorView view_of(const std::string& name, Dtype dtype, std::vector<std::int64_t> shape,
                   const std::vector<Value>& values) {
  return {.name = name,
          .dtype = dtype,
          .shape = std::move(shape),
          .bytes = std::as_bytes(std::span(values))};
}

/// Writes three tensors of different widths and metadata.
void write_example(const std::string& path) {
  const std::vector<std::uint8_t> bytes{1, 2, 3};
  const std::vector<float> floats{0.5F, -1, 2, 3, 4, 5};
  const std::vector<double> scalar{2.25};
  const std::vector<TensorView> tensors{view_of("bytes", Dtype::u8, {3}, bytes),
                                        view_of("layer.weight", Dtype::f32, {2, 3}, floats),
                                        view_of("scalar", Dtype::f64, {}, scalar)};
  write_safetensors(path, tensors, {{"format", "pt"}, {"note", "a \"quoted\" word"}});
}

TEST_CASE("Names, dtypes, shapes, bytes and metadata round-trip") {
  const TempFolder folder;
  const std::string path = folder.path("m.safetensors");
  write_example(path);
  const auto file = SafetensorsFile::open(path);
  REQUIRE(file.tensors().size() == 3);
  const TensorView& weight = file.at("layer.weight");
  CHECK(weight.dtype == Dtype::f32);
  CHECK(weight.shape == std::vector<std::int64_t>{2, 3});
  std::vector<float> values(6);
  REQUIRE(weight.bytes.size() == 24);
  std::memcpy(values.data(), weight.bytes.data(), 24);
  CHECK(values == std::vector<float>{0.5F, -1, 2, 3, 4, 5});
  CHECK(file.at("scalar").shape.empty());
  CHECK(file.at("bytes").bytes[2] == std::byte{3});
  CHECK(file.metadata() == Metadata{{"format", "pt"}, {"note", "a \"quoted\" word"}});
  CHECK(file.find("absent") == nullptr);
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { std::ignore = file.at("absent"); }),
             Contains(path) && Contains("'absent'"));
}

TEST_CASE("Data starts at a multiple of 64 and every tensor is aligned to its elements") {
  const TempFolder folder;
  for (std::size_t extra = 0; extra < 70; ++extra) {
    const std::string path = folder.path("m");
    const std::vector<double> doubles(2);
    const std::vector<std::uint8_t> bytes(3);
    write_safetensors(path,
                      std::vector{view_of("b" + std::string(extra, 'x'), Dtype::u8, {3}, bytes),
                                  view_of("d", Dtype::f64, {2}, doubles)});
    std::uint64_t length = 0;
    std::memcpy(&length, folder.read("m").data(), sizeof(length));
    CHECK((sizeof(length) + length) % 64 == 0);
    const auto file = SafetensorsFile::open(path);
    CHECK(reinterpret_cast<std::uintptr_t>(file.at("d").bytes.data()) % 8 == 0);
  }
}

TEST_CASE("The names and sizes of all dtypes match the format") {
  const std::vector<std::tuple<Dtype, std::string, std::int64_t>> expected{
      {Dtype::boolean, "BOOL", 1}, {Dtype::u8, "U8", 1},   {Dtype::i8, "I8", 1},
      {Dtype::u16, "U16", 2},      {Dtype::i16, "I16", 2}, {Dtype::f16, "F16", 2},
      {Dtype::bf16, "BF16", 2},    {Dtype::u32, "U32", 4}, {Dtype::i32, "I32", 4},
      {Dtype::f32, "F32", 4},      {Dtype::u64, "U64", 8}, {Dtype::i64, "I64", 8},
      {Dtype::f64, "F64", 8}};
  for (const auto& [dtype, name, size] : expected) {
    CHECK(name_of(dtype) == name);
    CHECK(size_of(dtype) == size);
    const TempFolder folder;
    const std::string header = R"({"t":{"dtype":")" + name + R"(","shape":[1],"data_offsets":[0,)" +
                               std::to_string(size) + "]}}";
    CHECK(SafetensorsFile::open(folder.write("f", file_of(header, static_cast<std::size_t>(size))))
              .at("t")
              .dtype == dtype);
  }
}

TEST_CASE("A file of the reference implementation is read") {
  const auto file =
      SafetensorsFile::open(std::string(DTRAIN_SOURCE_DIR) + "/tests/golden/mini.safetensors");
  CHECK(file.at("weight.embed.weight").shape == std::vector<std::int64_t>{256, 64});
  CHECK(file.at("inputs").dtype == Dtype::i64);
  CHECK(file.at("logits").bytes.size() == 2 * 64 * 256 * 4);
}

TEST_CASE("Invalid headers are rejected with the tensor's name") {
  const TempFolder folder;
  const auto refused = [&](const std::string& header, std::size_t num_data_bytes) {
    INFO(header);
    return refusal(folder.write("f", file_of(header, num_data_bytes)));
  };
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string f32 = R"("F32")";
  CHECK_NOTHROW(SafetensorsFile::open(folder.write("f", file_of(one(f32, "[2]", "[0,8]"), 8))));
  CHECK_THAT(refused(one(f32, "[3]", "[0,8]"), 8), Contains("'w'") && Contains("12 bytes"));
  CHECK_THAT(refused(one(f32, "[2]", "[0,8]"), 7), Contains("'w'") && Contains("7 bytes"));
  CHECK_THAT(refused(one(f32, "[2]", "[0,8]"), 9), Names("1 bytes"));
  CHECK_THAT(refused(one(f32, "[2]", "[8,0]"), 8), Contains("'w'"));
  CHECK_THAT(refused(one(f32, "[2]", "[4,12]"), 12), Contains("'w'") && Contains("gap"));
  CHECK_THAT(refused(one(f32, "[2]", "[0,8,8]"), 8), Contains("'w'"));
  CHECK_THAT(refused(one(f32, "[-2]", "[0,8]"), 8), Contains("-2"));
  CHECK_THAT(refused(one(f32, "[2.0]", "[0,8]"), 8), Contains("2.0"));
  CHECK_THAT(refused(one(f32, "2", "[0,8]"), 8), Names("w", "list"));
  CHECK_THAT(refused(one(f32, "[[2]]", "[0,8]"), 8), Contains("nested"));
  CHECK_THAT(refused(one(f32, "[18446744073709551615]", "[0,8]"), 8), Contains("a size"));
  CHECK_THAT(refused(one(f32, "[4611686018427387904,4]", "[0,0]"), 0), Contains("too large"));
  CHECK_THAT(refused(one(f32, "[4611686018427387904,4,0]", "[0,0]"), 0), Contains("too large"));
  CHECK_THAT(refused(one(f32, "[1e999]", "[0,8]"), 8), Names("number"));
  CHECK_THAT(refused(one(R"("F33")", "[2]", "[0,8]"), 8), Contains("\"F33\""));
  CHECK_THAT(refused(one("7", "[2]", "[0,8]"), 8), Contains("unknown dtype 7"));
  CHECK_THAT(refused(R"({"w":{"dtype":"F32","shape":[2]}})", 8), Contains("data_offsets"));
  CHECK_THAT(refused(R"({"w":3})", 8), Contains("'w'"));
  CHECK_THAT(refused(R"({"a\nb":3})", 8), Contains("control characters"));
  CHECK_THAT(refused("[]", 0), Names("JSON object"));
  CHECK_THAT(refused("{", 0), Contains("JSON"));
  CHECK_THAT(refused(R"({"__metadata__":{"a":1}})", 0), Contains("'a'"));
  CHECK_THAT(refused(std::string("{}\0 ", 4), 0), Contains("NUL"));
  CHECK_THAT(refused(std::string(1'000'000, '['), 0), Contains("nested"));
}

TEST_CASE("Duplicate names and overlapping tensors are rejected") {
  const TempFolder folder;
  const auto tensor = [](const std::string& name, int begin, int end) {
    return nlohmann::json(name).dump() + R"(:{"dtype":"U8","shape":[)" +
           std::to_string(end - begin) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
           std::to_string(end) + "]}";
  };
  const auto refused = [&](const std::string& a, const std::string& b) {
    return refusal(folder.write("f", file_of("{" + a + "," + b + "}", 8)));
  };
  CHECK_THAT(refused(tensor("w", 0, 4), tensor("w", 4, 8)), Contains("'w' twice"));
  CHECK_THAT(refused(tensor("v", 0, 5), tensor("w", 4, 8)), Contains("overlap"));
  CHECK_THAT(refused(tensor("v", 0, 3), tensor("w", 4, 8)), Contains("gap"));
  const std::string twice = R"("w":{"dtype":"U8","shape":[9],"shape":[8],"data_offsets":[0,8]})";
  CHECK_THAT(refusal(folder.write("f", file_of("{" + twice + "}", 8))), Contains("'shape' twice"));
  // Equal keys in different tensors are not duplicates; empty tensors may lie between others.
  const std::string good = "{" + tensor("a", 0, 4) + "," + tensor("b", 4, 4) + "," +
                           tensor("c", 4, 8) + "," + tensor("d", 8, 8) + "}";
  CHECK(SafetensorsFile::open(folder.write("f", file_of(good, 8))).tensors().size() == 4);
}

TEST_CASE("A model file truncated at any length is rejected by name") {
  const TempFolder folder;
  write_example(folder.path("whole"));
  const std::string whole = folder.read("whole");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    refusal(folder.write("cut", whole.substr(0, length)));
  }
}

/// Returns whether both files hold as many tensors, of the same dtypes, shapes and bytes.
bool same_tensors(const SafetensorsFile& a, const SafetensorsFile& b) {
  const auto same = [](const TensorView& x, const TensorView& y) {
    return x.dtype == y.dtype && x.shape == y.shape && std::ranges::equal(x.bytes, y.bytes);
  };
  return std::ranges::equal(a.tensors(), b.tensors(), same);
}

/// Bytes before the data.
std::size_t header_size(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  return sizeof(length) + length;
}

TEST_CASE("A flipped bit in the header is rejected or changes only names") {
  const TempFolder folder;
  write_example(folder.path("whole"));
  const auto original = SafetensorsFile::open(folder.path("whole"));
  const std::string whole = folder.read("whole");
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * header_size(whole); ++bit) {
    INFO("bit " << bit);
    const std::string path = folder.write("damaged", dtrain::testing::flipped(whole, bit));
    try {
      const auto file = SafetensorsFile::open(path);
      CHECK(same_tensors(file, original));
    } catch (const base::Error& error) {
      CHECK(error.kind() == ErrorKind::checkpoint);
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("A corrupted header is rejected or yields consistent tensors") {
  const TempFolder folder;
  write_example(folder.path("whole"));
  const std::string whole = folder.read("whole");
  std::mt19937_64 random(20'240'607);
  for (int round = 0; round < 1000; ++round) {
    INFO("round " << round);
    std::string damaged = whole;
    const std::uint64_t num_flips = 1 + random() % 6;
    for (std::uint64_t i = 0; i < num_flips; ++i) {
      damaged = dtrain::testing::flipped(damaged, random() % (8 * header_size(whole)));
    }
    const std::string path = folder.write("damaged", damaged);
    try {
      const auto file = SafetensorsFile::open(path);
      for (const TensorView& tensor : file.tensors()) {
        std::int64_t num_bytes = size_of(tensor.dtype);
        for (const std::int64_t size : tensor.shape) num_bytes *= size;
        CHECK(num_bytes == std::ssize(tensor.bytes));
      }
    } catch (const base::Error& error) {
      CHECK(error.kind() == ErrorKind::checkpoint);
    }
  }
}

TEST_CASE("Invalid calls of the writer are defects and write nothing") {
  const TempFolder folder;
  const std::vector<float> two(2);
  const auto defect = [&](const std::vector<TensorView>& tensors) {
    message_of(ErrorKind::internal, [&] { write_safetensors(folder.path("m"), tensors); });
    CHECK(folder.count() == 0);
  };
  defect({view_of("w", Dtype::f32, {3}, two)});
  defect({view_of("w", Dtype::f32, {2}, two), view_of("w", Dtype::f32, {2}, two)});
  defect({view_of("__metadata__", Dtype::f32, {2}, two)});
}

TEST_CASE("A model file that cannot be written is named") {
  const TempFolder folder;
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { write_example(folder.path("no/m")); }),
             Contains(folder.path("no/m")));
}

template <typename T>
double value_of(Dtype dtype, T value) {
  // Offset by one byte to test unaligned reads.
  std::vector<std::byte> bytes(sizeof(T) + 1);
  std::memcpy(bytes.data() + 1, &value, sizeof(T));
  return value_at(dtype, bytes.data() + 1);
}

double half(std::uint16_t bits) { return value_of(Dtype::f16, bits); }
double brain(std::uint16_t bits) { return value_of(Dtype::bf16, bits); }

TEST_CASE("Integers and floats keep their values") {
  CHECK(value_of(Dtype::boolean, std::uint8_t{1}) == 1);
  CHECK(value_of(Dtype::u8, std::uint8_t{255}) == 255);
  CHECK(value_of(Dtype::i8, std::int8_t{-128}) == -128);
  CHECK(value_of(Dtype::u16, std::uint16_t{65535}) == 65535);
  CHECK(value_of(Dtype::i16, std::int16_t{-2}) == -2);
  CHECK(value_of(Dtype::u32, std::uint32_t{4294967295}) == 4294967295.0);
  CHECK(value_of(Dtype::i32, std::int32_t{-3}) == -3);
  CHECK(value_of(Dtype::u64, std::uint64_t{1} << 63) == 9223372036854775808.0);
  CHECK(value_of(Dtype::i64, std::int64_t{-4}) == -4);
  CHECK(value_of(Dtype::f32, 0.1F) == static_cast<double>(0.1F));
  CHECK(value_of(Dtype::f64, -0.1) == -0.1);
}

// The bit patterns are those of the tables in IEEE 754's and bfloat16's descriptions.
TEST_CASE("Sixteen-bit floats are decoded correctly") {
  CHECK(half(0x3c00) == 1);
  CHECK(half(0xc000) == -2);
  CHECK(half(0x7bff) == 65504);
  CHECK(half(0x0400) == std::ldexp(1.0, -14));
  CHECK(half(0x0001) == std::ldexp(1.0, -24));
  CHECK(half(0x83ff) == -std::ldexp(1023.0, -24));
  CHECK(half(0x3555) == 0.333251953125);
  CHECK(std::signbit(half(0x8000)));
  CHECK(half(0xfc00) == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(half(0x7e00)));
  CHECK(brain(0x3f80) == 1);
  CHECK(brain(0x4049) == 3.140625);
  CHECK(brain(0xff80) == -std::numeric_limits<double>::infinity());
  CHECK(brain(0x0001) == std::ldexp(1.0, -133));
  CHECK(std::isnan(brain(0x7fc0)));
}

}  // namespace
}  // namespace dtrain::checkpoint::format::safetensors_test
