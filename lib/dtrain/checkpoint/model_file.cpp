#include "dtrain/checkpoint/model_file.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/safetensors.h"

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

void check_names(const format::SafetensorsFile& file, const param::ParameterSpecs& specs,
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

std::vector<TensorSpec> tensors_of(const param::ParameterSpecs& specs, at::ScalarType dtype,
                                   std::span<const NamedTensor> buffers) {
  std::vector<TensorSpec> tensors;
  for (const param::ParameterSpec& spec : specs) {
    tensors.push_back({spec.name, dtype, spec.export_shape()});
  }
  for (const NamedTensor& buffer : buffers) {
    tensors.push_back({buffer.name, buffer.value.scalar_type(), buffer.value.sizes().vec()});
  }
  return tensors;
}

// Readers take the tensors for PyTorch's.
format::Metadata for_readers(format::Metadata metadata) {
  metadata.emplace("format", "pt");
  return metadata;
}

}  // namespace

ModelFileWriter::ModelFileWriter(const std::string& path, const param::ParameterSpecs& specs,
                                 at::ScalarType dtype, std::span<const NamedTensor> buffers,
                                 const format::Metadata& metadata)
    : specs_(specs),
      buffers_(buffers),
      file_(path, tensors_of(specs, dtype, buffers), for_readers(metadata)) {
  write_due_buffers();
}

// Buffers of wider dtypes come before the parameters, the others after.
void ModelFileWriter::write_due_buffers() {
  const std::size_t num_parameters = specs_.values().size();
  for (; next_ < file_.order().size() && file_.order()[next_] >= num_parameters; ++next_) {
    file_.write(buffers_[file_.order()[next_] - num_parameters].value);
  }
}

void ModelFileWriter::write(param::ParameterId id, const at::Tensor& values) {
  DTRAIN_CHECK(file_.order()[next_] == static_cast<std::size_t>(id.value()));
  file_.write(param::exported_view(specs_[id], values));
  ++next_;
  write_due_buffers();
}

std::int64_t ModelFileWriter::write_bytes(const param::ParameterSpecs& specs,
                                          at::ScalarType dtype) {
  std::int64_t largest = 0;  // elements
  for (const param::ParameterSpec& spec : specs) {
    if (std::ranges::is_sorted(spec.export_order)) continue;
    largest = std::max(largest, format::num_elements(spec.export_view));
  }
  return param::bytes_of(largest, dtype);
}

void ModelFileWriter::commit() {
  DTRAIN_CHECK(next_ == file_.order().size());
  file_.commit();
}

void write_model_file(const std::string& path, const param::ParameterSpecs& specs,
                      const param::Arena& arena, std::span<const NamedTensor> buffers,
                      const format::Metadata& metadata) {
  ModelFileWriter writer(path, specs, arena.flat().scalar_type(), buffers, metadata);
  for (const param::ParameterId id : specs.ids()) writer.write(id, arena.view(id));
  writer.commit();
}

param::Arena read_model_file(const format::SafetensorsFile& file,
                             const param::ParameterSpecs& specs,
                             std::span<const NamedTensor> buffers,
                             const at::TensorOptions& options) {
  (void)format::verify_checksum(file);
  check_names(file, specs, buffers);
  for (const param::ParameterSpec& spec : specs) check_parameter(file, spec);
  for (const NamedTensor& buffer : buffers) check_buffer(file, buffer);
  const param::ArenaAllocator allocate = [&](std::int64_t bytes) {
    return at::zeros({bytes}, options.dtype(at::kByte));
  };
  param::Arena arena(param::ArenaLayout(specs), c10::typeMetaToScalarType(options.dtype()),
                     allocate);
  for (const param::ParameterId id : specs.ids()) {
    param::exported_view(specs[id], arena.view(id)).copy_(to_tensor(file.at(specs[id].name)));
  }
  return arena;
}

bool ArenaSource::has(const std::string& name) const {
  return std::any_of(specs_.begin(), specs_.end(), [&](const param::ParameterSpec& spec) {
    return kWeightPrefix + spec.name == name;
  });
}

void ArenaSource::read(const Piece& piece) {
  for (const param::ParameterId id : specs_.ids()) {
    if (kWeightPrefix + specs_[id].name != piece.name) continue;
    at::Tensor values = arena_.view(id);
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
