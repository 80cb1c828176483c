// Top-k compression: sends only the largest gradients.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/internal/scheme.h"

namespace dtrain::parallel {

/// Sends the share `ratio` of a part's values that is largest in size, rounded to bfloat16, to all
/// ranks, each of which adds what it has got in the order of ranks.
///
/// Format of a message of c entries: c gaps of uint16, then c values of bfloat16. An entry's index
/// is the sum of the gaps up to its own. Gaps beyond 65535 are crossed by entries of value 0, and
/// entries that are not needed repeat the last index with value 0: c is equal on all ranks, and
/// nobody has to be told how long a message is.
///
/// In parts of more than kExact elements the smallest size that counts is estimated from a sample:
/// somewhat fewer values may travel then, never more.
///
/// Source: Lin et al., Deep Gradient Compression (ICLR 2018), for the sampled threshold. Differs:
/// what is left is added to the next gradients as it is, without momentum.
class TopK final : public Scheme {
 public:
  static constexpr std::int64_t kExact = std::int64_t{1} << 15;

  TopK(std::int64_t size, double ratio, comm::ProcessGroup& group,
       const param::ArenaAllocator& allocate);

  [[nodiscard]] static SchemeCosts costs(std::int64_t size, double ratio, std::int64_t num_ranks,
                                         at::ScalarType dtype);

  void begin(const at::Tensor& values) override;
  void finish(const at::Tensor& sum) override;

  /// Writes the message of the values and takes what it says from them.
  static void compress(const at::Tensor& values, double ratio, const at::Tensor& message);
  /// Adds what a message says to `sum` (n).
  static void decompress(const at::Tensor& message, const at::Tensor& sum);
  /// Returns the bytes of a message.
  [[nodiscard]] static std::int64_t message_bytes(std::int64_t size, double ratio);

 private:
  double ratio_;
  comm::ProcessGroup& group_;
  at::Tensor messages_;  // (ranks, bytes of a message) uint8
  comm::Work work_;
};

}  // namespace dtrain::parallel
