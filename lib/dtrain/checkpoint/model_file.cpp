#include "dtrain/checkpoint/model_file.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::checkpoint {
namespace {

using base::ErrorKind;
using format::WeightFile;

// Tolerates frequencies that another machine's pow() rounded differently.
constexpr double kBufferTolerance = 1e-5;

// Returns the last component of a dotted name.
std::string_view own_name(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

bool is_transposed(at::IntArrayRef shape, at::IntArrayRef expected) {
  if (shape.size() < 2 || shape.size() != expected.size()) return false;
  std::vector<std::int64_t> turned = shape.vec();
  std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
  return turned == expected;
}

void check_parameter(const WeightFile& file, const param::ParameterSpec& spec) {
  const format::TensorView& found = *file.find(spec.name);
  const std::vector<std::int64_t> expected = spec.export_shape();
  if (found.shape != expected) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' has shape ({}), but this model needs ({}); {}",
               file.path(), spec.name, fmt::join(found.shape, ", "), fmt::join(expected, ", "),
               is_transposed(found.shape, expected)
                   ? "it is transposed, as square weights of the file may be, too: save the "
                     "whole model again with the shapes of docs/formats/model.md"
                   : "give the sizes of the file's model, or convert the file with dtrain "
                     "checkpoint import and give the result to --init-from");
  }
  if (!at::isFloatingType(scalar_type_of(found.dtype))) {
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' has dtype {}, but weights must be floating point",
               file.path(), spec.name, format::name_of(found.dtype));
  }
}

// Compares in the file's dtype, to which the file's values were rounded.
bool has_values_of(const format::TensorView& found, const at::Tensor& buffer) {
  const at::ScalarType dtype = scalar_type_of(found.dtype);
  if (!at::isFloatingType(dtype) ||
      format::bytes_of(found.dtype, found.shape) != format::size_of(found.dtype) * buffer.numel()) {
    return false;
  }
  const bool is_half = dtype == at::kHalf;
  const double relative = is_half ? 0x1p-10 : dtype == at::kBFloat16 ? 0x1p-7 : kBufferTolerance;
  const double absolute = is_half ? 0x1p-24 : 0;  // the smallest float16
  return at::allclose(to_tensor(found).to(at::kDouble).flatten(),
                      buffer.to(dtype).to(at::kDouble).flatten(), relative, absolute);
}

/// A file's tensors other than expected parameters, by how they are treated.
struct SortedTensors {
  std::vector<std::string> missing;
  std::vector<std::string> unknown;
  std::vector<std::string> ignored;  // also aliases, and buffers under other modules' names
  std::vector<std::pair<const format::TensorView*, const NamedTensor*>> buffers;
  std::vector<std::pair<const format::TensorView*, const param::ParameterAlias*>> aliases;
};

void sort_tensor(const format::TensorView& tensor, const Constants& constants,
                 SortedTensors& sorted) {
  const auto alias =
      std::ranges::find(constants.aliases, tensor.name, &param::ParameterAlias::name);
  const auto buffer =
      std::ranges::find(constants.buffers, own_name(tensor.name),
                        [](const NamedTensor& each) { return own_name(each.name); });
  if (alias != constants.aliases.end()) {
    sorted.aliases.emplace_back(&tensor, &*alias);
    sorted.ignored.push_back(tensor.name);
  } else if (buffer != constants.buffers.end()) {
    sorted.buffers.emplace_back(&tensor, &*buffer);
    if (tensor.name != buffer->name) sorted.ignored.push_back(tensor.name);
  } else if (std::ranges::find(constants.unused, tensor.name) != constants.unused.end()) {
    sorted.ignored.push_back(tensor.name);
  } else {
    sorted.unknown.push_back(tensor.name);
  }
}

SortedTensors sort_tensors(const WeightFile& file, const param::ParameterSpecs& specs,
                           const Constants& constants) {
  SortedTensors sorted;
  std::set<std::string_view> parameters;
  for (const param::ParameterSpec& spec : specs) {
    parameters.insert(spec.name);
    if (file.find(spec.name) == nullptr) sorted.missing.push_back(spec.name);
  }
  for (const format::TensorView& tensor : file.tensors()) {
    if (!parameters.contains(tensor.name)) sort_tensor(tensor, constants, sorted);
  }
  return sorted;
}

std::string note_on(const WeightFile& file, const SortedTensors& contents) {
  std::vector<std::string> notes(file.notes().begin(), file.notes().end());
  if (!contents.ignored.empty()) {
    notes.push_back(fmt::format("left out {}, which the model does not need",
                                base::list_text(contents.ignored)));
  }
  return notes.empty() ? "" : fmt::format("{}: {}", file.path(), fmt::join(notes, "; "));
}

void check_names(const WeightFile& file, const SortedTensors& contents) {
  if (!contents.unknown.empty()) {
    base::fail(
        ErrorKind::checkpoint,
        "model file '{}' has tensors that do not belong to this model: {}{}; give weights of "
        "this model, under its names",
        file.path(), base::list_text(contents.unknown),
        contents.missing.empty() ? "" : ", and lacks " + base::list_text(contents.missing));
  }
  if (!contents.missing.empty()) {
    base::fail(
        ErrorKind::checkpoint,
        "model file '{}' lacks tensors of this model: {}; give a file with the complete model",
        file.path(), base::list_text(contents.missing));
  }
}

void check_buffers(const WeightFile& file, const SortedTensors& contents) {
  for (const auto& [found, buffer] : contents.buffers) {
    if (has_values_of(*found, buffer->value)) continue;
    base::fail(
        ErrorKind::checkpoint,
        "model file '{}': tensor '{}' differs from this model's constant of that name; merged or "
        "modified models cannot be loaded",
        file.path(), found->name);
  }
}

void check_aliases(const WeightFile& file, const SortedTensors& contents) {
  for (const auto& [found, alias] : contents.aliases) {
    const format::TensorView* const parameter = file.find(alias->parameter);
    if (parameter != nullptr && parameter->dtype == found->dtype &&
        at::equal(mapped_tensor(*parameter), mapped_tensor(*found))) {
      continue;
    }
    base::fail(ErrorKind::checkpoint,
               "model file '{}': tensor '{}' differs from '{}', but this model uses only the "
               "latter; remove the former from the file, or give the settings of a model with both",
               file.path(), found->name, alias->parameter);
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

// Null if there is no parameter of this piece.
const param::ParameterSpec* spec_of_piece(const param::ParameterSpecs& specs,
                                          std::string_view name) {
  const auto found = std::find_if(
      specs.begin(), specs.end(),
      [&](const param::ParameterSpec& spec) { return kWeightPrefix + spec.name == name; });
  return found == specs.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_piece(const Piece& piece) {
  base::fail(ErrorKind::checkpoint, "the model has no tensor '{}'", piece.name);
}

// exported: a whole parameter in its exported shape. Copies it if the dims are in another order.
at::Tensor in_storage_shape(const param::ParameterSpec& spec, const at::Tensor& exported) {
  if (std::ranges::is_sorted(spec.export_order)) return exported.reshape(spec.whole_shape());
  at::Tensor storage = at::empty(spec.whole_shape(), exported.options());
  param::store_exported(spec, exported, storage);
  return storage;
}

// whole: the values of the piece's tensor.
void copy_box(at::Tensor whole, const Piece& piece) {
  for (std::size_t dim = 0; dim < piece.box.sizes.size(); ++dim) {
    whole =
        whole.narrow(static_cast<std::int64_t>(dim), piece.box.offsets[dim], piece.box.sizes[dim]);
  }
  at::Tensor target = piece.tensor;
  target.copy_(whole);
}

// Marks the file as PyTorch's for other readers.
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

// The file's order puts wider dtypes first, so buffers may precede or follow the parameters.
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

std::string check_model_file(const WeightFile& file, const param::ParameterSpecs& specs,
                             const Constants& constants) {
  (void)file.verify_checksums();
  const SortedTensors contents = sort_tensors(file, specs, constants);
  file.explain_errors([&] {
    check_names(file, contents);
    for (const param::ParameterSpec& spec : specs) check_parameter(file, spec);
    check_buffers(file, contents);
    check_aliases(file, contents);
  });
  return note_on(file, contents);
}

LoadedModel read_model_file(const WeightFile& file, const param::ParameterSpecs& specs,
                            const Constants& constants, const at::TensorOptions& options) {
  std::string note = check_model_file(file, specs, constants);
  const param::ArenaAllocator allocate = [&](std::int64_t bytes) {
    return at::zeros({bytes}, options.dtype(at::kByte));
  };
  param::Arena arena(param::ArenaLayout(specs), c10::typeMetaToScalarType(options.dtype()),
                     allocate);
  for (const param::ParameterId id : specs.ids()) {
    param::store_exported(specs[id], to_tensor(*file.find(specs[id].name)), arena.view(id));
  }
  return {.weights = std::move(arena), .note = std::move(note)};
}

void check_finite(const State& pieces, std::string_view path) {
  const std::string name = first_not_finite(pieces);
  if (name.empty()) return;
  base::fail(ErrorKind::checkpoint,
             "'{}': tensor '{}' holds values that are NaN, infinite or too large for {}; give "
             "weights from before the run diverged",
             path, name, c10::getDtypeNames(pieces.front().tensor.scalar_type()).first);
}

State state_of(const param::ParameterSpecs& specs, const param::Arena& arena) {
  State state;
  for (const param::ParameterId id : specs.ids()) {
    const param::ParameterSpec& spec = specs[id];
    state.push_back({.name = kWeightPrefix + spec.name,
                     .global_shape = spec.shape,
                     .box = format::whole(spec.shape),
                     .tensor = arena.view(id)});
  }
  return state;
}

void FiniteSource::read(const Piece& piece) {
  source_.read(piece);
  check_finite({piece}, path_);
}

bool ModelFileSource::has(const std::string& name) const {
  return spec_of_piece(specs_, name) != nullptr;
}

void ModelFileSource::read(const Piece& piece) {
  const param::ParameterSpec* const spec = spec_of_piece(specs_, piece.name);
  if (spec == nullptr) refuse_piece(piece);
  copy_box(in_storage_shape(*spec, mapped_tensor(*file_.find(spec->name))), piece);
}

bool ArenaSource::has(const std::string& name) const {
  return spec_of_piece(specs_, name) != nullptr;
}

void ArenaSource::read(const Piece& piece) {
  for (const param::ParameterId id : specs_.ids()) {
    if (kWeightPrefix + specs_[id].name == piece.name) return copy_box(arena_.view(id), piece);
  }
  refuse_piece(piece);
}

}  // namespace dtrain::checkpoint
