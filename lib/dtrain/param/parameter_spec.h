// What is known of a parameter before memory is allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::param {

/// Index of a parameter in its model's list of specs.
using ParameterId = std::int64_t;

/// One parameter. Storage keeps the rows that parallelism cuts (neurons) outermost; export restores
/// the reference's shape by `storage.view(export_view).permute(export_order)`.
struct ParameterSpec {
  std::string name;                        ///< exported name
  std::vector<std::int64_t> shape;         ///< in storage
  std::vector<std::int64_t> export_view;   ///< splits storage dims; the same elements
  std::vector<std::int64_t> export_order;  ///< permutation of export_view
  double init_stddev = 0.02;               ///< normal distribution around 0
  bool decay = true;                       ///< subject to weight decay

  [[nodiscard]] std::int64_t num_elements() const;
  [[nodiscard]] std::vector<std::int64_t> export_shape() const;
};

/// The parameter in the reference's shape, a view of `storage`.
[[nodiscard]] at::Tensor exported_view(const ParameterSpec& spec, const at::Tensor& storage);

}  // namespace dtrain::param
