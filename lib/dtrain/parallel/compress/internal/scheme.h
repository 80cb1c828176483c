// The parts of a rank's gradients that are compressed one by one, and the interface of a scheme that
// compresses one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/values/values.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// How gradients are compressed between replicas.
struct Compression {
  config::Compression scheme = {};
  std::int64_t min_elements = 0;  ///< a rank's part of a parameter with fewer is sent whole

  bool operator==(const Compression&) const = default;
};

/// Neighbouring gradients that travel together.
struct GradientPart {
  param::ElementRange range;  ///< of the arena
  param::ParameterId id{};    ///< whose they are; of several the last
  bool is_compressed = false;
  /// As a matrix, where the scheme needs one: rows whole.
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] std::int64_t size() const { return range.size(); }
};

/// All that the shard trains but for padding, from the arena's end to its beginning: the last
/// parameters' gradients are final first. Parts that are not compressed are merged with such
/// neighbours of the same unit.
///
/// compression: not none.
[[nodiscard]] std::vector<GradientPart> gradient_parts(const param::ArenaLayout& layout,
                                                       param::ShardId shard,
                                                       const Compression& compression);

/// Compresses a part, sends it, and makes the sum of what all ranks have sent. One step is begin,
/// advance, finish, and keep where its update was made.
///
/// Collective: begin and advance, over the ranks that hold the same part, in the same order.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// values (n): this rank's; they stay in use until finish() returns, and hold then what this rank
  /// has not sent.
  virtual void begin(const at::Tensor& values) = 0;
  /// Sends the second message of schemes that have two.
  virtual void advance() {}
  /// sum (n) becomes the sum over the ranks, with equal bits on all of them.
  virtual void finish(const at::Tensor& sum) = 0;
  /// Keeps what this step learnt for the next one. Called only after an update; without it the next
  /// step starts from the same state as this one.
  virtual void keep() {}

  /// What is carried from step to step, equal on all ranks: 2 dims; undefined: nothing.
  [[nodiscard]] virtual at::Tensor factor() const { return {}; }
};

/// What a part's scheme takes and sends.
///
/// Units: bytes of one rank.
struct SchemeCosts {
  std::int64_t buffers = 0;  ///< held always
  std::int64_t work = 0;     ///< temporaries while it compresses
  std::int64_t sent = 0;     ///< in a step, in a ring
  std::int64_t calls = 0;    ///< of the group, in a step
  std::int64_t carried = 0;  ///< of factor()
};

/// Returns what a rank sends of an all-reduce of these bytes.
[[nodiscard]] constexpr std::int64_t bytes_in_ring(std::int64_t bytes, std::int64_t num_ranks) {
  return 2 * bytes * (num_ranks - 1) / num_ranks;
}

/// part.is_compressed. num_ranks: of the group; dtype: of gradients.
[[nodiscard]] SchemeCosts scheme_costs(const GradientPart& part, const config::Compression& scheme,
                                       std::int64_t num_ranks, at::ScalarType dtype);

/// `group` and what `allocate` refers to must outlive the scheme.
[[nodiscard]] std::unique_ptr<Scheme> make_scheme(const GradientPart& part,
                                                  const config::Compression& scheme,
                                                  comm::ProcessGroup& group, at::ScalarType dtype,
                                                  const param::ArenaAllocator& allocate);

}  // namespace dtrain::parallel
