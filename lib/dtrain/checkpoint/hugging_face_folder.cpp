#include "dtrain/checkpoint/hugging_face_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/box.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/param/arena.h"

namespace dtrain::checkpoint {
namespace {

using Shard = std::vector<const param::ParameterSpec*>;

constexpr int kIndent = 2;

std::int64_t exported_bytes(const param::ParameterSpec& spec, at::ScalarType dtype) {
  return param::bytes_of(format::num_elements(spec.export_view), dtype);
}

// Fills one file after the other, in the order of the parameters.
std::vector<Shard> shards_of(const param::ParameterSpecs& specs, const FolderOptions& options) {
  std::vector<Shard> shards(1);
  std::int64_t filled = 0;  // bytes
  for (const param::ParameterSpec& spec : specs) {
    const std::int64_t bytes = exported_bytes(spec, options.dtype);
    const bool is_full = options.max_file_bytes > 0 && filled + bytes > options.max_file_bytes;
    if (is_full && !shards.back().empty()) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(&spec);
    filled += bytes;
  }
  return shards;
}

std::string file_name(std::size_t shard, std::size_t count) {
  if (count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, count);
}

void write_shard(const std::string& path, const Shard& shard, const FolderOptions& options,
                 const std::function<at::Tensor(const param::ParameterSpec&)>& read) {
  std::vector<TensorSpec> tensors;
  for (const param::ParameterSpec* spec : shard) {
    tensors.push_back({spec->name, options.dtype, spec->export_shape()});
  }
  format::Metadata metadata = options.metadata;
  metadata.emplace("format", "pt");
  TensorFileWriter writer(path, tensors, metadata);
  // Tensors of one dtype keep their order.
  for (const param::ParameterSpec* spec : shard) {
    writer.write(param::exported_view(*spec, read(*spec)));
  }
  writer.commit();
}

std::string index_text(const std::vector<Shard>& shards, const FolderOptions& options) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::int64_t total = 0;  // bytes
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const param::ParameterSpec* spec : shards[i]) {
      map[spec->name] = file_name(i, shards.size());
      total += exported_bytes(*spec, options.dtype);
    }
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(kIndent) + "\n";
}

}  // namespace

void write_hugging_face_weights(
    const std::string& folder, const param::ParameterSpecs& specs, const FolderOptions& options,
    const std::function<at::Tensor(const param::ParameterSpec&)>& read) {
  const std::filesystem::path path = folder;
  const std::vector<Shard> shards = shards_of(specs, options);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard((path / file_name(i, shards.size())).string(), shards[i], options, read);
  }
  if (shards.size() == 1) return;
  base::write_atomically((path / "model.safetensors.index.json").string(),
                         base::ErrorKind::checkpoint, index_text(shards, options));
}

}  // namespace dtrain::checkpoint
