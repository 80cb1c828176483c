// The description of a parameter before memory is allocated, and its initial values.
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

/// Which slice of a parameter a rank holds.
struct TensorCut {
  std::int64_t dim = 0;    ///< of the storage shape
  std::int64_t begin = 0;  ///< first row (column) held
  std::int64_t whole = 0;  ///< rows (columns) of the whole parameter
};

/// One parameter. Storage keeps the rows that parallelism cuts (neurons) outermost; export restores
/// the reference's shape by `storage.view(export_view).permute(export_order)`.
struct ParameterSpec {
  std::string name;                        ///< exported name
  std::vector<std::int64_t> shape;         ///< in storage, of what this rank holds
  std::vector<std::int64_t> export_view;   ///< splits the whole's storage dims; the same elements
  std::vector<std::int64_t> export_order;  ///< permutation of export_view
  double init_stddev = 0.02;               ///< normal distribution around 0
  bool decay = true;                       ///< subject to weight decay
  std::optional<TensorCut> cut = {};       ///< nothing: this rank holds the whole

  [[nodiscard]] std::int64_t num_elements() const;  ///< of what this rank holds
  [[nodiscard]] bool is_held() const { return num_elements() > 0; }
  /// The same parameter on a rank that holds none of it.
  [[nodiscard]] ParameterSpec not_held() const;
  /// The storage shape of the whole parameter.
  [[nodiscard]] std::vector<std::int64_t> whole_shape() const;
  [[nodiscard]] std::vector<std::int64_t> export_shape() const { return exported(export_view); }
  /// One number for each dim of export_view, as the exported dims are ordered.
  [[nodiscard]] std::vector<std::int64_t> exported(const std::vector<std::int64_t>& of_view) const;
};

using ParameterSpecs = base::IndexedVector<ParameterId, ParameterSpec>;

/// The whole parameter in the reference's shape, a view of `storage`.
[[nodiscard]] at::Tensor exported_view(const ParameterSpec& spec, const at::Tensor& storage);

/// Fills `storage` (spec.shape: the slice that this rank holds) with normal values of standard
/// deviation spec.init_stddev around 0, rounded to float32 whatever the storage's dtype is, so that
/// every layout and dtype starts from the same numbers, and a slice from those that it has in the
/// whole. Allocates no more than a slice.
///
/// Source: Box and Muller 1958 over Philox words; four values a counter.
void initialise(const ParameterSpec& spec, std::uint64_t seed, const at::Tensor& storage);

}  // namespace dtrain::param
