// Top-k sparsification: sends only the gradients of largest magnitude.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/internal/scheme.h"

namespace dtrain::parallel {

/// Sends the fraction `ratio` of a part's values with the largest magnitudes, rounded to bfloat16,
/// to all ranks; each rank adds the received messages in rank order.
///
/// Format of a message of c entries: c gaps of uint16, then c values of bfloat16. An entry's index
/// is the prefix sum of the gaps. Entries of value 0 bridge gaps beyond 65535. Unused entries
/// repeat the last index with value 0, so c is equal on all ranks and messages need no length
/// field.
///
/// In parts of more than kExact elements the threshold is estimated from a sample: slightly fewer
/// values may be sent, never more.
///
/// Source: Lin et al., Deep Gradient Compression (ICLR 2018), for the sampled threshold. Differs:
///         the residual is added to the next gradients without momentum correction.
class TopK final : public Scheme {
 public:
  static constexpr std::int64_t kExact = std::int64_t{1} << 15;

  TopK(std::int64_t size, double ratio, comm::ProcessGroup& group,
       const param::ArenaAllocator& allocate);

  [[nodiscard]] static SchemeCosts costs(std::int64_t size, double ratio, std::int64_t num_ranks,
                                         at::ScalarType dtype);

  void begin(const at::Tensor& values) override;
  void finish(const at::Tensor& sum) override;

  /// Encodes the largest values into `message` and subtracts the encoded values from `values`.
  static void compress(const at::Tensor& values, double ratio, const at::Tensor& message);
  /// Adds a message's values to `sum` (n).
  static void decompress(const at::Tensor& message, const at::Tensor& sum);
  /// Returns the size of a message in bytes.
  [[nodiscard]] static std::int64_t message_bytes(std::int64_t size, double ratio);

 private:
  double ratio_;
  comm::ProcessGroup& group_;
  at::Tensor messages_;  // (ranks, bytes of a message) uint8
  comm::Work work_;
};

}  // namespace dtrain::parallel
