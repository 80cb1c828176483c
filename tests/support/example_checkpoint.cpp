#include "support/example_checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"

namespace dtrain::testing {
namespace {

using checkpoint::format::Box;
using checkpoint::format::Dtype;
using checkpoint::format::TensorInfo;

const std::map<std::string, TensorInfo>& tensors() {
  static const std::map<std::string, TensorInfo> kTensors{
      {"model.empty", {.dtype = Dtype::f32, .shape = {0, 4}}},
      {"model.rows", {.dtype = Dtype::f32, .shape = {16, 6}}},
      {"model.scalar", {.dtype = Dtype::f64, .shape = {}}},
      {"optimizer.columns", {.dtype = Dtype::f32, .shape = {6, 16}}},
      {"optimizer.flat", {.dtype = Dtype::f64, .shape = {64}}}};
  return kTensors;
}

/// Appends one element. index: in the whole tensor.
void append_value(std::vector<std::byte>& bytes, std::int64_t step, const std::string& tensor,
                  std::int64_t index) {
  const double value = static_cast<double>(step * 100'000 + std::ssize(tensor) * 1000 + index);
  const auto append = [&](auto converted) {
    const auto begin = bytes.size();
    bytes.resize(begin + sizeof(converted));
    std::memcpy(bytes.data() + begin, &converted, sizeof(converted));
  };
  if (tensors().at(tensor).dtype == Dtype::f32) {
    append(static_cast<float>(value));
  } else {
    append(value);
  }
}

std::vector<std::byte> values_of(std::int64_t step, const std::string& tensor, const Box& box) {
  const std::vector<std::int64_t>& shape = tensors().at(tensor).shape;
  std::vector<std::byte> bytes;
  if (shape.empty()) append_value(bytes, step, tensor, 0);
  if (shape.size() == 1) {
    for (std::int64_t i = 0; i < box.sizes[0]; ++i) {
      append_value(bytes, step, tensor, box.offsets[0] + i);
    }
  }
  if (shape.size() == 2) {
    for (std::int64_t i = 0; i < box.sizes[0]; ++i) {
      for (std::int64_t j = 0; j < box.sizes[1]; ++j) {
        append_value(bytes, step, tensor, (box.offsets[0] + i) * shape[1] + box.offsets[1] + j);
      }
    }
  }
  return bytes;
}

}  // namespace

ExampleShard::ExampleShard(std::int64_t step, std::int64_t rank, std::int64_t num_ranks)
    : step_(step) {
  const std::int64_t begin = 16 * rank / num_ranks;
  const std::int64_t count = 16 * (rank + 1) / num_ranks - begin;
  add("model.rows", {.offsets = {begin, 0}, .sizes = {count, 6}});
  add("optimizer.columns", {.offsets = {0, begin}, .sizes = {6, count}});
  add("optimizer.flat", {.offsets = {2 * begin}, .sizes = {2 * count}});
  add("optimizer.flat", {.offsets = {32 + 2 * begin}, .sizes = {2 * count}});
  if (rank == 0) add("model.empty", {.offsets = {0, 0}, .sizes = {0, 4}});
  if (rank == num_ranks - 1) add("model.scalar", {});
}

void ExampleShard::add(const std::string& tensor, Box box) {
  bytes_.push_back(values_of(step_, tensor, box));
  const TensorInfo& info = tensors().at(tensor);
  pieces_.push_back({.tensor = tensor,
                     .dtype = info.dtype,
                     .shape = info.shape,
                     .box = std::move(box),
                     .bytes = bytes_.back()});
}

checkpoint::format::Manifest example_manifest(std::int64_t step, std::int64_t num_ranks) {
  return {.step = step,
          .samples = 8 * step,
          .tokens = 1024 * step,
          .run = kExampleRun,
          .mesh = {{config::Axis::dp, num_ranks}},
          .config = R"({"train":{"steps":10}})",
          .data_fingerprint = "0123456789abcdef",
          .contents = {}};
}

std::string example_folder(const std::string& checkpoints, std::int64_t step) {
  return checkpoint::store::temporary_folder(checkpoints, step, kExampleRun);
}

checkpoint::format::Contents save_example_shard(base::FileSystem& files,
                                                const std::string& checkpoints, std::int64_t step,
                                                std::int64_t rank, std::int64_t num_ranks) {
  const ExampleShard shard(step, rank, num_ranks);
  return checkpoint::store::write_shard(
      files, {.folder = example_folder(checkpoints, step), .rank = rank, .num_ranks = num_ranks},
      shard.pieces(), checkpoint::store::RateLimiter());
}

void commit_example(base::FileSystem& files, const std::string& checkpoints,
                    const checkpoint::format::Manifest& manifest) {
  const std::string sync_failure = checkpoint::store::commit(files, checkpoints, manifest);
  if (!sync_failure.empty()) base::fail(base::ErrorKind::checkpoint, "{}", sync_failure);
}

void save_example(base::FileSystem& files, const std::string& checkpoints, std::int64_t step,
                  std::int64_t num_ranks) {
  checkpoint::format::Manifest manifest = example_manifest(step, num_ranks);
  files.make_folder(example_folder(checkpoints, step));
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    checkpoint::format::merge(manifest.contents,
                              save_example_shard(files, checkpoints, step, rank, num_ranks));
  }
  commit_example(files, checkpoints, manifest);
}

checkpoint::format::Manifest verify_all(const std::string& checkpoint) {
  checkpoint::format::Manifest manifest = checkpoint::store::read_manifest(checkpoint);
  for (const checkpoint::format::FileInfo& file : manifest.contents.files) {
    checkpoint::store::verify_file(checkpoint, file);
  }
  return manifest;
}

std::string example_difference(const std::string& checkpoint, std::int64_t step) {
  checkpoint::store::Reader reader(checkpoint, verify_all(checkpoint));
  if (reader.manifest().step != step) return fmt::format("step {}", reader.manifest().step);
  if (reader.manifest().contents.tensors != tensors()) return "other tensors";
  for (const auto& [name, info] : tensors()) {
    const Box box = checkpoint::format::whole(info.shape);
    const std::vector<std::byte> expected = values_of(step, name, box);
    std::vector<std::byte> found(expected.size());
    reader.read(name, box, found);
    if (found != expected) return "values of " + name;
  }
  return {};
}

}  // namespace dtrain::testing
