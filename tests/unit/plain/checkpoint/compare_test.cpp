#include "dtrain/checkpoint/store/compare.h"

#include <bit>
#include <cstring>
#include <limits>

#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/shard_writer.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::compare_test {
namespace {

using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using format::Box;
using format::Dtype;
using Shape = std::vector<std::int64_t>;

/// A tensor before it is saved.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape{};
  std::vector<std::byte> bytes{};
};

template <typename T>
Tensor tensor(const std::string& name, Dtype dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

Tensor floats(const std::string& name, Shape shape, const std::vector<float>& values) {
  return tensor(name, Dtype::f32, std::move(shape), values);
}

/// Rows [begin, end) of a tensor.
PieceBytes rows(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  Box box = format::whole(tensor.shape);
  box.offsets[0] = begin;
  box.sizes[0] = end - begin;
  const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
  return {.tensor = tensor.name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .box = box,
          .bytes = std::span(tensor.bytes)
                       .subspan(static_cast<std::size_t>(begin) * row,
                                static_cast<std::size_t>(end - begin) * row)};
}

/// A checkpoint written by `num_ranks` ranks, each with its share of the rows.
std::string save(const TempFolder& folder, const std::string& run,
                 const std::vector<Tensor>& tensors, std::int64_t num_ranks) {
  base::Disk disk(base::ErrorKind::checkpoint);
  const std::string checkpoints = folder.path(run);
  const std::string temporary = temporary_folder(checkpoints, 5, run);
  std::filesystem::create_directories(temporary);
  format::Manifest manifest;
  manifest.step = 5;
  manifest.run = run;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<PieceBytes> pieces;
    for (const Tensor& tensor : tensors) {
      const std::int64_t size = tensor.shape[0];
      pieces.push_back(rows(tensor, size * rank / num_ranks, size * (rank + 1) / num_ranks));
    }
    std::erase_if(pieces, [](const PieceBytes& piece) { return piece.bytes.empty(); });
    format::merge(manifest.contents,
                  write_shard(disk, {temporary, rank, num_ranks}, pieces, RateLimiter()));
  }
  CHECK(commit(disk, checkpoints, manifest).empty());
  return checkpoints + "/" + checkpoint_name(5);
}

Comparison compared(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                    std::int64_t ranks_of_b = 1) {
  const TempFolder folder;
  Reader reader_a(save(folder, "a", a, 1));
  Reader reader_b(save(folder, "b", b, ranks_of_b));
  return compare(reader_a, reader_b);
}

TEST_CASE("Equal tensors compare equal for any number of writing ranks") {
  const std::vector<Tensor> tensors{floats("model.w", {4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}),
                                    floats("optimizer.m.w", {5}, {1, 2, 3, 4, 5})};
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    const Comparison result = compared(tensors, tensors, ranks);
    CHECK(result.is_equal());
    CHECK(result.num_tensors == 2);
  }
}

TEST_CASE("The first difference is reported with both values and the largest differences") {
  const Comparison result =
      compared({floats("model.a", {2, 2}, {1, 2, 3, 4}), floats("model.b", {1}, {7})},
               {floats("model.a", {2, 2}, {1, 2, 3.5F, -8}), floats("model.b", {1}, {7})}, 2);
  CHECK_FALSE(result.is_equal());
  CHECK(result.num_tensors == 2);
  REQUIRE(result.differences.size() == 1);
  const TensorDifference& difference = result.differences[0];
  CHECK(difference.tensor == "model.a");
  CHECK(difference.index == Shape{1, 0});
  CHECK(difference.value_in_a == 3);
  CHECK(difference.value_in_b == 3.5);
  CHECK(difference.num_elements == 2);
  CHECK(difference.largest_absolute == 12);
  CHECK(difference.largest_relative == 1.5);
}

TEST_CASE("The last element of a tensor of several slabs is compared too") {
  const std::int64_t rows = 5000;
  const std::int64_t columns = 501;  // 2.5 million elements; slabs end within rows
  std::vector<float> values(static_cast<std::size_t>(rows * columns), 0.5F);
  const Tensor before = floats("model.w", {rows, columns}, values);
  values.back() = 0.25F;
  const Comparison result = compared({before}, {floats("model.w", {rows, columns}, values)}, 3);
  REQUIRE(result.differences.size() == 1);
  CHECK(result.differences[0].index == Shape{rows - 1, columns - 1});
  CHECK(result.differences[0].num_elements == 1);
  CHECK(result.differences[0].largest_relative == 0.5);
}

TEST_CASE("Tensors of one dtype are compared by their bits") {
  const Comparison zeros =
      compared({floats("model.w", {1}, {0.0F})}, {floats("model.w", {1}, {-0.0F})});
  REQUIRE(zeros.differences.size() == 1);
  CHECK(zeros.differences[0].largest_absolute == 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(compared({floats("model.w", {1}, {nan})}, {floats("model.w", {1}, {nan})}).is_equal());
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // not representable as a double
  CHECK_FALSE(compared({tensor<std::int64_t>("n", Dtype::i64, {1}, {large})},
                       {tensor<std::int64_t>("n", Dtype::i64, {1}, {large - 1})})
                  .is_equal());
}

TEST_CASE("Tensors of different dtypes are compared by their values") {
  const Tensor wide = tensor<double>("model.w", Dtype::f64, {2}, {1, -2.5});
  const Tensor brain = tensor<std::uint16_t>("model.w", Dtype::bf16, {2}, {0x3f80, 0xc020});
  CHECK(compared({wide}, {floats("model.w", {2}, {1, -2.5F})}).is_equal());
  CHECK(compared({wide}, {brain}).is_equal());
  const Comparison result = compared({wide}, {floats("model.w", {2}, {1, -2})});
  REQUIRE(result.differences.size() == 1);
  CHECK(result.differences[0].value_in_b == -2);
}

TEST_CASE("A number and a NaN differ infinitely") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Comparison result =
      compared({floats("model.w", {2}, {1, 2})}, {floats("model.w", {2}, {nan, 2})});
  REQUIRE(result.differences.size() == 1);
  CHECK(result.differences[0].largest_absolute == std::numeric_limits<double>::infinity());
  CHECK(result.differences[0].num_elements == 1);
}

TEST_CASE("If the files of both checkpoints are missing, the first is named") {
  const TempFolder folder;
  const std::vector<Tensor> tensors{floats("model.w", {1}, {1})};
  Reader reader_a(save(folder, "a", tensors, 1));
  Reader reader_b(save(folder, "b", tensors, 1));
  for (const Reader* reader : {&reader_a, &reader_b}) {
    std::filesystem::remove(reader->path() + "/model-00001-of-00001.safetensors");
  }
  CHECK_THAT(
      message_of(base::ErrorKind::checkpoint, [&] { std::ignore = compare(reader_a, reader_b); }),
      Names(reader_a.path()));
}

TEST_CASE("Tensors in only one checkpoint or of different shapes are named") {
  const Comparison result =
      compared({floats("model.a", {1}, {1}), floats("model.c", {2, 1}, {1, 2})},
               {floats("model.b", {1}, {1}), floats("model.c", {1, 2}, {1, 2})});
  CHECK(result.only_in_a == std::vector<std::string>{"model.a"});
  CHECK(result.only_in_b == std::vector<std::string>{"model.b"});
  CHECK(result.of_other_shape == std::vector<std::string>{"model.c"});
  CHECK(result.differences.empty());
  CHECK_FALSE(result.is_equal());
}

}  // namespace
}  // namespace dtrain::checkpoint::store::compare_test
