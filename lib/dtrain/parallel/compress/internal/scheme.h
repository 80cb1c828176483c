// Splits a rank's gradients into parts; defines the interface of a compression scheme for one part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/values/values.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Compression of gradients between replicas.
struct Compression {
  config::Compression scheme = {};
  std::int64_t min_elements = 0;  ///< smaller shards of a parameter are sent uncompressed

  bool operator==(const Compression&) const = default;
};

/// Contiguous gradients that are sent together.
struct GradientPart {
  param::ElementRange range;  ///< range in the arena
  param::ParameterId id{};    ///< the last parameter that the part covers
  bool is_compressed = false;
  /// Matrix shape, if the scheme needs one; the part then consists of whole rows.
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] std::int64_t size() const { return range.size(); }
};

/// Splits the shard's trained gradients, without padding, from the arena's end to its beginning,
/// because the last parameters' gradients are ready first. Adjacent uncompressed parts of one unit
/// are merged.
///
/// compression: must not be `none`.
[[nodiscard]] std::vector<GradientPart> gradient_parts(const param::ArenaLayout& layout,
                                                       param::ShardId shard,
                                                       const Compression& compression);

/// Compresses a part, sends it, and computes the sum over ranks. One step is begin, advance,
/// finish, and commit if the update was applied.
///
/// Collective: begin and advance, over the ranks that hold the same part, in the same order.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// Compresses and sends `values` (n), this rank's gradients.
  ///
  /// Async: `values` are in use until finish() returns; they then hold the residual.
  virtual void begin(const at::Tensor& values) = 0;
  /// Sends the second message; no-op for schemes with one.
  virtual void advance() {}
  /// Writes the sum over ranks to `sum` (n), with equal bits on all ranks.
  virtual void finish(const at::Tensor& sum) = 0;
  /// Carries this step's state over to the next. Called only after an update; otherwise the next
  /// step starts from the same state as this one.
  virtual void commit() {}

  /// Returns the state kept across steps, a matrix equal on all ranks; undefined if there is none.
  [[nodiscard]] virtual at::Tensor factor() const { return {}; }
};

/// Memory and traffic of a part's scheme.
///
/// Units: bytes per rank.
struct SchemeCosts {
  std::int64_t buffers = 0;  ///< permanent
  std::int64_t work = 0;     ///< temporaries during compression
  std::int64_t sent = 0;     ///< per step, in a ring
  std::int64_t calls = 0;    ///< collective calls per step
  std::int64_t factor = 0;   ///< size of factor() in checkpoints
};

/// Returns the bytes that a rank sends in a ring all-reduce of `bytes`.
[[nodiscard]] constexpr std::int64_t bytes_in_ring(std::int64_t bytes, std::int64_t num_ranks) {
  return 2 * bytes * (num_ranks - 1) / num_ranks;
}

/// Predicts the costs of a part; part.is_compressed must be true. num_ranks: size of the group;
/// dtype: gradient dtype.
[[nodiscard]] SchemeCosts scheme_costs(const GradientPart& part, const config::Compression& scheme,
                                       std::int64_t num_ranks, at::ScalarType dtype);

/// Makes the scheme of a part. `group` and what `allocate` refers to must outlive it.
[[nodiscard]] std::unique_ptr<Scheme> make_scheme(const GradientPart& part,
                                                  const config::Compression& scheme,
                                                  comm::ProcessGroup& group, at::ScalarType dtype,
                                                  const param::ArenaAllocator& allocate);

}  // namespace dtrain::parallel
