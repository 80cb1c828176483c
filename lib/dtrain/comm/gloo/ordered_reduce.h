// Sums in tree order over gloo messages, in place and with bounded memory. Private to comm/gloo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dtrain/comm/gloo/link.h"

namespace dtrain::comm {

/// One reduction: rank p owns slice p, receives everyone's contribution to it and adds them.
struct SlicedReduction {
  const std::byte* input = nullptr;  ///< all slices, one after the other
  std::byte* output = nullptr;       ///< this rank's slice; may lie in `input`
  at::ScalarType dtype = at::ScalarType::Float;
  ReduceOp op = ReduceOp::sum;
  std::vector<std::int64_t> begins;  ///< of each slice in elements, and the end of the last
  std::byte* results = nullptr;      ///< where the other ranks' sums go (all slices); null: nowhere
};

/// Carries reductions out, in pieces that need at most kScratchBytes beside the tensors.
///
/// Source:  direct exchange of slices, Thakur et al., Optimization of Collective Communication
///          Operations in MPICH (2005). Differs: pieces, so that memory is bounded and adding
///          overlaps receiving; contributions are added in tree order.
/// Threads: one caller at a time.
class OrderedReducer {
 public:
  static constexpr std::int64_t kScratchBytes = std::int64_t{4} << 20;

  explicit OrderedReducer(Link& link) : link_(link) {}

  /// Returns the bytes sent.
  std::int64_t run(const SlicedReduction& reduction, const base::Deadline& deadline);

  /// Every rank gets every rank's whole tensor and adds them itself: one exchange instead of two,
  /// for small ones.
  std::int64_t run_small(std::byte* data, std::int64_t count, at::ScalarType dtype, ReduceOp op,
                         const base::Deadline& deadline);

  /// Returns whether run_small is quicker for a tensor of that size.
  [[nodiscard]] bool is_small(std::int64_t bytes) const { return is_small(link_.size(), bytes); }
  /// Returns the bytes of scratch memory among so many ranks, once a tensor of that size was
  /// reduced.
  [[nodiscard]] static std::int64_t scratch_bytes(std::int64_t ranks, std::int64_t tensor_bytes);

 private:
  struct Piece {
    std::int64_t begin = 0;  // bytes from the start of the slice
    std::int64_t bytes = 0;
  };

  [[nodiscard]] std::vector<Piece> pieces_of(std::int64_t slice_bytes) const;
  void post_to_others(const SlicedReduction& reduction);
  void post_results(const SlicedReduction& reduction);
  void post_contributions(const Piece& piece, std::size_t half);
  void reduce_own(const SlicedReduction& reduction, const base::Deadline& deadline);
  [[nodiscard]] static bool is_small(std::int64_t ranks, std::int64_t bytes);
  // Makes room for two pieces from each other rank.
  void reserve_scratch();
  [[nodiscard]] std::byte* scratch(std::int64_t peer, std::size_t half);

  Link& link_;
  at::Tensor scratch_;  // (bytes) uint8: counted as all tensors are
  std::int64_t piece_bytes_ = 0;
  // These belong to the reduction under way:
  std::vector<Message> sends_;
  std::vector<Message> results_;
  std::vector<Message> contributions_[2];
  std::int64_t bytes_sent_ = 0;
};

}  // namespace dtrain::comm
