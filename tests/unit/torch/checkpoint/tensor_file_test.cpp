#include "dtrain/checkpoint/tensor_file.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "support/temp_folder.h"
#include "support/tensor_file.h"
#include "support/values.h"

namespace dtrain::checkpoint::tensor_file_test {
namespace {

using format::SafetensorsFile;
using testing::write_tensor_file;

TEST_CASE("Tensors of every dtype, stride, shape and special value round-trip bit for bit") {
  const testing::TempFolder folder;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3});
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kUInt16, at::kShort, at::kHalf, at::kBFloat16,
        at::kUInt32, at::kInt, at::kFloat, at::kUInt64, at::kLong, at::kDouble}) {
    tensors.push_back({c10::toString(type), at::randint(2, {3, 5}, generator).to(type)});
  }
  const at::Tensor base = at::arange(24, at::TensorOptions().dtype(at::kFloat)).view({2, 3, 4});
  const std::vector<NamedTensor> others{
      {"odd", at::tensor({1.0, -0.0, 1.0 / 0.0, -1.0 / 0.0, 5e-324}, at::kDouble)},
      {"a NaN's payload",
       at::tensor({std::int64_t{0x7FF4000000000123}}, at::kLong).view(at::ScalarType::Double)},
      {"permuted", base.permute({2, 0, 1})},
      {"expanded", base.select(0, 1).unsqueeze(0).expand({5, 3, 4})},
      {"empty", at::zeros({0, 7})},
      {"scalar", at::scalar_tensor(4.5)}};
  tensors.insert(tensors.end(), others.begin(), others.end());
  write_tensor_file(folder.path("all"), tensors, {{"key", "value"}});
  const SafetensorsFile file = SafetensorsFile::open(folder.path("all"));
  CHECK(file.tensors().size() == tensors.size());
  for (const NamedTensor& tensor : tensors) {
    INFO(tensor.name);
    const at::Tensor found = to_tensor(file.at(tensor.name));
    CHECK(found.sizes() == tensor.value.sizes());
    CHECK(testing::same_bits(found, tensor.value));
  }
  CHECK(file.metadata().at("key") == "value");
}

TEST_CASE("A checksum covers every tensor and dtrain's metadata, in any order") {
  const std::string bytes = "12345678";
  const auto checksum = [&](std::vector<format::TensorView> tensors, const std::string& model) {
    format::ContentChecksum content;
    for (const auto& tensor : tensors) content.add(tensor, std::as_bytes(std::span(bytes)));
    return content.text({{"dtrain.model", model}, {format::kChecksumKey, "any"}});
  };
  const format::TensorView a{.name = "a", .dtype = format::Dtype::f32, .shape = {2}, .bytes = {}};
  const format::TensorView b{.name = "b", .dtype = format::Dtype::f64, .shape = {1}, .bytes = {}};
  format::TensorView other = a;
  other.shape = {1, 2};
  const std::string expected = checksum({a, b}, "{}");
  CHECK(expected.size() == format::kBlankChecksum.size());
  CHECK(checksum({b, a}, "{}") == expected);
  CHECK(checksum({other, b}, "{}") != expected);
  CHECK(checksum({a}, "{}") != expected);
  CHECK(checksum({a, b}, "[]") != expected);
}

TEST_CASE("A tensor read from a file outlives it") {
  const testing::TempFolder folder;
  write_tensor_file(folder.path("f"), std::vector<NamedTensor>{{"x", at::ones({1000})}});
  at::Tensor read;
  {
    const SafetensorsFile file = SafetensorsFile::open(folder.path("f"));
    read = to_tensor(file.at("x"));
  }
  folder.write("f", "gone");
  CHECK(read.sum().item<float>() == 1000);
}

TEST_CASE("A dtype that the format lacks is a defect of the caller") {
  const testing::TempFolder folder;
  const at::Tensor complex = at::zeros({2}, at::TensorOptions().dtype(at::kComplexFloat));
  testing::message_of(base::ErrorKind::internal, [&] {
    write_tensor_file(folder.path("f"), std::vector<NamedTensor>{{"z", complex}});
  });
  CHECK(folder.count() == 0);
}

}  // namespace
}  // namespace dtrain::checkpoint::tensor_file_test
