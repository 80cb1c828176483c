#include "dtrain/checkpoint/model_file.h"

#include <ATen/ops/allclose.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

namespace dtrain::checkpoint {
namespace {

using base::ErrorKind;

// Frequencies that another machine's pow() rounded differently are the same frequencies.
constexpr double kBufferTolerance = 1e-5;

const format::TensorView& checked_tensor(const format::SafetensorsFile& file, std::string_view name,
                                         at::IntArrayRef shape) {
  const format::TensorView& found = file.at(name);
  if (at::IntArrayRef(found.shape) != shape) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' has shape ({}), this model needs ({})", file.path(),
               name, fmt::join(found.shape, ", "), fmt::join(shape, ", "));
  }
  return found;
}

void check_parameter(const format::SafetensorsFile& file, const param::ParameterSpec& spec) {
  const format::TensorView& found = checked_tensor(file, spec.name, spec.export_shape());
  if (!at::isFloatingType(scalar_type_of(found.dtype))) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' holds {} values, weights are floating point",
               file.path(), spec.name, format::name_of(found.dtype));
  }
}

void check_buffer(const format::SafetensorsFile& file, const NamedTensor& buffer) {
  if (file.find(buffer.name) == nullptr) return;
  const at::Tensor found =
      to_tensor(checked_tensor(file, buffer.name, buffer.value.sizes())).to(at::kDouble);
  if (!at::allclose(found, buffer.value.to(at::kDouble), kBufferTolerance, 0)) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' differs from what this model computes with; merged or "
               "changed models cannot be loaded",
               file.path(), buffer.name);
  }
}

void check_names(const format::SafetensorsFile& file, std::span<const param::ParameterSpec> specs,
                 std::span<const NamedTensor> buffers) {
  std::set<std::string_view> known;
  for (const param::ParameterSpec& spec : specs) known.insert(spec.name);
  for (const NamedTensor& buffer : buffers) known.insert(buffer.name);
  for (const format::TensorView& tensor : file.tensors()) {
    if (!known.contains(tensor.name)) {
      base::fail(ErrorKind::checkpoint, "model file '{}': tensor '{}' is no part of this model",
                 file.path(), tensor.name);
    }
  }
}

}  // namespace

void write_model_file(const std::string& path, std::span<const param::ParameterSpec> specs,
                      const param::Arena& arena, std::span<const NamedTensor> buffers,
                      const format::Metadata& metadata) {
  std::vector<NamedTensor> tensors;
  for (const param::ParameterSpec& spec : specs) {
    const auto id = static_cast<param::ParameterId>(tensors.size());
    tensors.push_back({spec.name, param::exported_view(spec, arena.view(id))});
  }
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  format::Metadata all = metadata;
  all.emplace("format", "pt");  // readers take the tensors for PyTorch's
  write_tensor_file(path, tensors, all);
}

param::Arena read_model_file(const format::SafetensorsFile& file,
                             std::span<const param::ParameterSpec> specs,
                             std::span<const NamedTensor> buffers, at::ScalarType dtype) {
  check_names(file, specs, buffers);
  for (const param::ParameterSpec& spec : specs) check_parameter(file, spec);
  for (const NamedTensor& buffer : buffers) check_buffer(file, buffer);
  param::Arena arena(param::ArenaLayout(specs), dtype, param::private_memory);
  param::ParameterId id = 0;
  for (const param::ParameterSpec& spec : specs) {
    param::exported_view(spec, arena.view(id++)).copy_(to_tensor(file.at(spec.name)));
  }
  return arena;
}

bool ArenaSource::has(const std::string& name) const {
  return std::any_of(specs_.begin(), specs_.end(), [&](const param::ParameterSpec& spec) {
    return kWeightPrefix + spec.name == name;
  });
}

void ArenaSource::read(const Piece& piece) {
  for (std::size_t id = 0; id < specs_.size(); ++id) {
    if (kWeightPrefix + specs_[id].name != piece.name) continue;
    at::Tensor values = arena_.view(static_cast<param::ParameterId>(id));
    for (std::size_t dim = 0; dim < piece.box.sizes.size(); ++dim) {
      values = values.narrow(static_cast<std::int64_t>(dim), piece.box.offsets[dim],
                             piece.box.sizes[dim]);
    }
    at::Tensor target = piece.tensor;
    target.copy_(values);
    return;
  }
  base::fail(ErrorKind::checkpoint, "the model has no tensor '{}'", piece.name);
}

}  // namespace dtrain::checkpoint
