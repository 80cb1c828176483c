// Collects the parameters of a transformer's slice on a rank of the tensor axis.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/model/tensor_axis.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::model {

/// The entries of a parameter's dim that a rank holds: [begin, begin + count).
struct HeldRange {
  std::int64_t dim = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// The rows of embedding and output matrix that a rank holds.
struct VocabularySlice {
  std::int64_t whole = 0;  ///< V
  std::int64_t size = 0;   ///< rows held
  std::int64_t first = 0;  ///< the first of them

  [[nodiscard]] bool is_split() const { return size != whole; }
  [[nodiscard]] HeldRange rows() const { return {.dim = 0, .begin = first, .count = size}; }
};

/// Throws Error{usage} naming --tp and the setting unless `tp` divides its value `size`.
void check_divides(std::int64_t tp, std::string_view flag, std::int64_t size);

/// Returns a rank's part of the value `size` of a setting, which may be any number from one per rank
/// on.
///
/// Throws: Error{usage} naming --tp and the setting if there are more ranks than entries.
[[nodiscard]] TensorPart part_of(const TensorCoordinate& place, std::string_view flag,
                                 std::int64_t size);

/// Returns the whole vocabulary, or a rank's part of it if `place` splits the vocabulary.
///
/// Throws: as part_of.
[[nodiscard]] VocabularySlice vocabulary_of(std::int64_t vocab, const TensorCoordinate& place);

/// Norms begin as 1, biases as 0, and matrices and embeddings with normal values.
class ParameterList {
 public:
  /// stddev: of the initial matrices and embeddings.
  explicit ParameterList(double stddev) : stddev_(stddev) {}

  /// Adds a parameter that every rank holds whole, and that files hold in its own shape.
  param::ParameterId add(std::string name, param::ParameterKind kind,
                         std::vector<std::int64_t> shape);
  /// Adds a parameter of this whole shape of which the rank holds a range.
  param::ParameterId add(std::string name, param::ParameterKind kind,
                         std::vector<std::int64_t> shape, const HeldRange& held);

  /// To change a parameter that was added.
  [[nodiscard]] param::ParameterSpec& operator[](param::ParameterId id) { return specs_[id]; }
  [[nodiscard]] param::ParameterSpecs take() { return std::move(specs_); }

 private:
  double stddev_;
  param::ParameterSpecs specs_;
};

}  // namespace dtrain::model
