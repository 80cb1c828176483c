// The keys and values of a transformer that generates token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtrain::model {

/// Sizes of a cache. It holds 2 * layers * heads * head_dim values per position.
struct CacheSizes {
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< K, of keys and values
  std::int64_t head_dim = 0;  ///< d
  std::int64_t max_positions = 0;
};

/// Queries at the last `count` of `length` positions.
struct QuerySizes {
  std::int64_t heads = 0;
  std::int64_t count = 0;
  std::int64_t length = 0;
};

/// The keys and values of all positions of a sequence so far, with room for up to twice as many.
///
/// Threads: one caller.
class KeyValueCache {
 public:
  /// options: dtype and device of keys and values.
  KeyValueCache(const CacheSizes& sizes, const at::TensorOptions& options);

  /// Returns the positions for which a cache has room once the sequence has `positions`.
  [[nodiscard]] static std::int64_t capacity_for(std::int64_t positions,
                                                 std::int64_t max_positions);
  /// Returns the bytes of a cache for a sequence of this length.
  [[nodiscard]] static std::int64_t bytes(const CacheSizes& sizes, std::int64_t positions,
                                          at::ScalarType dtype);

  /// Returns the bytes of the largest temporaries of attend(), and of the mask.
  ///
  /// dtype: of keys and values.
  [[nodiscard]] static std::int64_t attention_bytes(const QuerySizes& queries,
                                                    at::ScalarType dtype);

  /// Makes room for `count` more positions.
  ///
  /// Throws: Error{usage} beyond max_positions.
  void reserve(std::int64_t count);

  /// Begins the next `count` positions and returns the first of them, counted from 0.
  ///
  /// Throws: as reserve().
  std::int64_t begin_positions(std::int64_t count);

  /// Stores keys and values of the C positions that have begun last in a layer. Each of these
  /// positions attends to all positions up to itself. Head h of the queries uses head h / (H / K) of
  /// keys and values.
  ///
  /// Shapes: query (H, C, d), key and value (K, C, d); returns (C, H*d).
  [[nodiscard]] at::Tensor attend(std::size_t layer, const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value);

 private:
  struct Layer {
    at::Tensor keys;    // (K, capacity, d)
    at::Tensor values;  // (K, capacity, d)
  };

  CacheSizes sizes_;
  std::vector<Layer> layers_;
  std::int64_t capacity_ = 0;  // positions for which the layers have room
  std::int64_t length_ = 0;    // positions that have begun
  at::Tensor mask_;            // (C, length) if C > 1: 0, or -infinity for later positions
};

}  // namespace dtrain::model
