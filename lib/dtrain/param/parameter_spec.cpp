#include "dtrain/param/parameter_spec.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/base/elementary.h"
#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"

namespace dtrain::param {

std::int64_t ParameterSpec::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

ParameterSpec ParameterSpec::not_held() const {
  ParameterSpec spec = *this;
  if (!spec.cut) spec.cut = TensorCut{.dim = 0, .begin = 0, .whole = shape.front()};
  spec.shape[static_cast<std::size_t>(spec.cut->dim)] = 0;
  return spec;
}

std::vector<std::int64_t> ParameterSpec::whole_shape() const {
  std::vector<std::int64_t> whole = shape;
  if (cut) whole[static_cast<std::size_t>(cut->dim)] = cut->whole;
  return whole;
}

std::vector<std::int64_t> ParameterSpec::exported(const std::vector<std::int64_t>& of_view) const {
  std::vector<std::int64_t> result;
  for (const std::int64_t dim : export_order) {
    result.push_back(of_view[static_cast<std::size_t>(dim)]);
  }
  return result;
}

std::vector<std::int64_t> ParameterSpec::export_shape() const {
  std::vector<std::int64_t> result = exported(export_view);
  for (std::size_t joined = 1; joined < joined_dims; ++joined) {
    const std::int64_t last = result.back();
    result.pop_back();
    result.back() *= last;
  }
  return result;
}

namespace {

// A view of the whole storage with the exported dims, none joined.
at::Tensor export_dims_of(const ParameterSpec& spec, const at::Tensor& storage) {
  DTRAIN_CHECK(storage.sizes() == at::IntArrayRef(spec.whole_shape()), "{}", spec.name);
  return storage.view(spec.export_view).permute(spec.export_order);
}

}  // namespace

at::Tensor exported_view(const ParameterSpec& spec, const at::Tensor& storage) {
  const at::Tensor dims = export_dims_of(spec, storage);
  return spec.joined_dims == 1 ? dims : dims.reshape(spec.export_shape());
}

void store_exported(const ParameterSpec& spec, const at::Tensor& exported,
                    const at::Tensor& storage) {
  DTRAIN_CHECK(exported.sizes() == at::IntArrayRef(spec.export_shape()), "{}", spec.name);
  export_dims_of(spec, storage).copy_(exported.reshape(spec.exported(spec.export_view)));
}

namespace {

// Two normal values from two random words; adding 0.5 keeps the logarithm's argument above zero.
std::array<double, 2> box_muller(std::uint32_t a, std::uint32_t b) {
  constexpr double kScale = 1.0 / 4294967296.0;
  const double radius = std::sqrt(-2.0 * base::logarithm((a + 0.5) * kScale));
  const auto [sine, cosine] = base::sine_cosine(2.0 * std::numbers::pi * b * kScale);
  return {radius * cosine, radius * sine};
}

// The initial values of a parameter, by index in its exported shape.
class Values {
 public:
  Values(const ParameterSpec& spec, std::uint64_t seed)
      : key_(base::philox_key(seed, base::RandomPurpose::initialisation)),
        hash_(base::hash_text(spec.name)),
        mean_(spec.init_mean),
        stddev_(spec.init_stddev) {}

  // Writes the values of indices [begin, begin + count).
  void write(std::int64_t begin, std::int64_t count, float* out) const {
    std::array<double, 4> four{};
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = begin + i;
      if (i == 0 || index % 4 == 0) four = values_of(static_cast<std::uint64_t>(index / 4));
      out[i] = static_cast<float>(mean_ + four[static_cast<std::size_t>(index % 4)] * stddev_);
    }
  }

 private:
  [[nodiscard]] std::array<double, 4> values_of(std::uint64_t counter) const {
    const auto words = base::philox(
        {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
         static_cast<std::uint32_t>(hash_), static_cast<std::uint32_t>(hash_ >> 32)},
        key_);
    const auto low = box_muller(words[0], words[1]);
    const auto high = box_muller(words[2], words[3]);
    return {low[0], low[1], high[0], high[1]};
  }

  base::PhiloxKey key_;
  std::uint64_t hash_;
  double mean_;
  double stddev_;
};

// A slice of an array: `sizes` entries from `offsets` on, per dim.
struct ArraySlice {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
};

// Writes the values of a slice of an array of `shape` to `drawn`, float32, contiguous and of the
// slice's shape; draws contiguous runs at once.
void draw(const ArraySlice& part, at::IntArrayRef shape, const Values& values,
          const at::Tensor& drawn) {
  float* out = drawn.mutable_data_ptr<float>();
  std::size_t run_dim = shape.size() - 1;  // the slice is complete in the dims after it
  std::int64_t after = 1;                  // elements of those dims
  while (run_dim > 0 && part.sizes[run_dim] == shape[run_dim]) after *= shape[run_dim--];
  const std::int64_t run = part.sizes[run_dim] * after;
  for (std::int64_t done = 0; done < drawn.numel(); done += run) {
    std::int64_t rest = done / run;  // index of the run in the dims before run_dim
    std::int64_t begin = part.offsets[run_dim] * after;
    std::int64_t stride = shape[run_dim] * after;
    for (std::size_t dim = run_dim; dim-- > 0;) {
      begin += (part.offsets[dim] + rest % part.sizes[dim]) * stride;
      rest /= part.sizes[dim];
      stride *= shape[dim];
    }
    values.write(begin, run, out + done);
  }
}

// A range of storage rows that is one slice of export_view.
struct StorageRows {
  std::int64_t begin = 0;  // along the cut dim of the whole storage
  std::int64_t end = 0;
  ArraySlice view;  // of export_view
};

// The dims of export_view that one dim of storage is split into: [first, end).
struct ViewDims {
  std::size_t first = 0;
  std::size_t end = 0;
};

ViewDims view_dims(const ParameterSpec& spec, std::int64_t storage_dim) {
  const std::vector<std::int64_t> whole = spec.whole_shape();
  ViewDims dims;
  for (std::int64_t dim = 0; dim <= storage_dim; ++dim) {
    dims.first = dims.end;
    for (std::int64_t size = 1; size < whole[static_cast<std::size_t>(dim)]; ++dims.end) {
      size *= spec.export_view[dims.end];
    }
  }
  return dims;
}

// Splits the rank's slice into pieces: one per entry of the outer dims (heads) that the cut crosses,
// or a single one.
std::vector<StorageRows> pieces_of(const ParameterSpec& spec) {
  ArraySlice all{.offsets = std::vector<std::int64_t>(spec.export_view.size()),
                 .sizes = spec.export_view};
  if (!spec.cut) return {{0, spec.whole_shape()[0], std::move(all)}};
  const ViewDims dims = view_dims(spec, spec.cut->dim);
  DTRAIN_CHECK(dims.end > dims.first, "{}", spec.name);
  const std::size_t inner = dims.end - 1;
  const std::int64_t length = spec.export_view[inner];
  const std::int64_t end = spec.cut->begin + spec.shape[static_cast<std::size_t>(spec.cut->dim)];
  std::vector<StorageRows> pieces;
  for (std::int64_t begin = spec.cut->begin; begin < end;) {
    StorageRows piece{
        .begin = begin, .end = std::min(end, (begin / length + 1) * length), .view = all};
    std::int64_t outer = begin / length;
    for (std::size_t dim = inner; dim-- > dims.first;) {
      piece.view.offsets[dim] = outer % spec.export_view[dim];
      piece.view.sizes[dim] = 1;
      outer /= spec.export_view[dim];
    }
    piece.view.offsets[inner] = begin % length;
    piece.view.sizes[inner] = piece.end - begin;
    begin = piece.end;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

void initialise(const ParameterSpec& spec, std::uint64_t seed, const at::Tensor& storage) {
  DTRAIN_CHECK(storage.sizes() == at::IntArrayRef(spec.shape), "{}", spec.name);
  const Values values(spec, seed);
  for (const StorageRows& piece : pieces_of(spec)) {
    const ArraySlice exported{spec.exported(piece.view.offsets), spec.exported(piece.view.sizes)};
    const at::Tensor held = spec.cut ? storage.narrow(spec.cut->dim, piece.begin - spec.cut->begin,
                                                      piece.end - piece.begin)
                                     : storage;
    const at::Tensor target = held.view(piece.view.sizes).permute(spec.export_order);
    const bool is_direct =
        target.is_cpu() && target.is_contiguous() && target.scalar_type() == at::kFloat;
    const at::Tensor drawn =
        is_direct ? target : at::empty(exported.sizes, at::TensorOptions().dtype(at::kFloat));
    draw(exported, spec.exported(spec.export_view), values, drawn);
    if (!is_direct) target.copy_(drawn);
  }
}

}  // namespace dtrain::param
