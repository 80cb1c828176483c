// Describes a parameter before memory is allocated, and initializes its values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/index.h"

namespace dtrain::param {

/// Index of a parameter in the specs of the whole model, on every rank.
using ParameterId = base::Index<struct ParameterTag>;

/// The slice of a parameter that a rank holds.
struct TensorCut {
  std::int64_t dim = 0;    ///< of the storage shape
  std::int64_t begin = 0;  ///< first row (column) held
  std::int64_t whole = 0;  ///< rows (columns) of the whole parameter
};

/// The role of a parameter, by which --no-decay selects.
enum class ParameterKind { matrix, embedding, norm, bias };

/// One parameter. In storage, the dimension that parallelism splits (neurons, heads) is outermost;
/// export restores the reference's shape as `storage.view(export_view).permute(export_order)`, whose
/// last `joined_dims` dims it joins into one.
struct ParameterSpec {
  std::string name;                        ///< exported name
  std::vector<std::int64_t> shape;         ///< storage shape of this rank's slice
  std::vector<std::int64_t> export_view;   ///< splits the whole parameter's storage dims
  std::vector<std::int64_t> export_order;  ///< permutation of export_view
  double init_stddev = 0.02;               ///< of the normal distribution of initial values
  bool decay = true;                       ///< subject to weight decay
  std::optional<TensorCut> cut = {};       ///< empty if this rank holds the whole parameter
  double init_mean = 0;                    ///< of the same distribution
  ParameterKind kind = ParameterKind::matrix;
  std::size_t joined_dims = 1;

  [[nodiscard]] std::int64_t num_elements() const;  ///< of this rank's slice
  [[nodiscard]] bool is_held() const { return num_elements() > 0; }
  /// Returns the spec of the same parameter on a rank that holds none of it.
  [[nodiscard]] ParameterSpec not_held() const;
  /// The storage shape of the whole parameter.
  [[nodiscard]] std::vector<std::int64_t> whole_shape() const;
  [[nodiscard]] std::vector<std::int64_t> export_shape() const;
  /// Reorders values, one per dim of export_view, to the order of the exported dims, none joined.
  [[nodiscard]] std::vector<std::int64_t> exported(const std::vector<std::int64_t>& of_view) const;
};

/// A second name of a parameter: files of other programs may hold its values again under `name`.
struct ParameterAlias {
  std::string name;
  std::string parameter;
};

using ParameterSpecs = base::IndexedVector<ParameterId, ParameterSpec>;

/// Returns the whole parameter in the reference's shape: a view of `storage`, or a copy if dims are
/// joined.
[[nodiscard]] at::Tensor exported_view(const ParameterSpec& spec, const at::Tensor& storage);

/// Copies a whole parameter in the reference's shape to `storage`.
void store_exported(const ParameterSpec& spec, const at::Tensor& exported,
                    const at::Tensor& storage);

/// Fills `storage`, this rank's slice (spec.shape), with normal values of mean spec.init_mean and
/// standard deviation spec.init_stddev. Values depend on the seed and on the element's index in the
/// whole parameter, and are rounded to float32 for any storage dtype, so every layout and dtype starts
/// from the same values. Allocates nothing for contiguous float32 storage on the CPU that has the
/// exported order, otherwise at most the size of the slice in float32.
///
/// Source: Box and Muller 1958, over Philox words; four values per counter.
void initialise(const ParameterSpec& spec, std::uint64_t seed, const at::Tensor& storage);

}  // namespace dtrain::param
