#include "dtrain/comm/gloo/ordered_reduce.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "dtrain/comm/reduce.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

namespace {

constexpr std::int64_t kWholeBytes = 16 << 10;
constexpr std::int64_t kLargestPiece = 1 << 20;

std::int64_t element_size(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t slice_offset(const SlicedReduction& reduction, std::int64_t slice) {
  return reduction.begins[static_cast<std::size_t>(slice)] * element_size(reduction.dtype);
}

std::int64_t slice_bytes(const SlicedReduction& reduction, std::int64_t slice) {
  return slice_offset(reduction, slice + 1) - slice_offset(reduction, slice);
}

// The size of a piece, where a reduction is carried out in pieces.
std::int64_t bytes_of_piece(std::int64_t ranks) {
  const std::int64_t grain = kSliceGrain * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t room = OrderedReducer::kScratchBytes / (2 * (ranks - 1));
  return std::max(grain, std::min(room, kLargestPiece) / grain * grain);
}

}  // namespace

bool OrderedReducer::is_small(std::int64_t ranks, std::int64_t bytes) {
  return bytes <= kWholeBytes && bytes * (ranks - 1) <= kScratchBytes;
}

std::int64_t OrderedReducer::scratch_bytes(std::int64_t ranks, std::int64_t tensor_bytes) {
  return 2 * (ranks - 1) * (is_small(ranks, tensor_bytes) ? tensor_bytes : bytes_of_piece(ranks));
}

void OrderedReducer::reserve_scratch() {
  const std::int64_t bytes = 2 * (link_.size() - 1) * piece_bytes_;
  if (scratch_.defined() && scratch_.numel() >= bytes) return;
  scratch_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
}

std::byte* OrderedReducer::scratch(std::int64_t peer, std::size_t half) {
  const std::int64_t index = (peer < link_.rank() ? peer : peer - 1) * 2;
  return static_cast<std::byte*>(scratch_.data_ptr()) +
         (index + static_cast<std::int64_t>(half)) * piece_bytes_;
}

std::vector<OrderedReducer::Piece> OrderedReducer::pieces_of(std::int64_t slice_bytes) const {
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0; begin < slice_bytes; begin += piece_bytes_) {
    pieces.push_back({begin, std::min(piece_bytes_, slice_bytes - begin)});
  }
  return pieces;
}

void OrderedReducer::post_to_others(const SlicedReduction& reduction) {
  for (std::int64_t step = 1; step < link_.size(); ++step) {
    const std::int64_t peer = (link_.rank() + step) % link_.size();  // not all to rank 0 first
    for (const Piece& piece : pieces_of(slice_bytes(reduction, peer))) {
      sends_.push_back(link_.send(reduction.input + slice_offset(reduction, peer) + piece.begin,
                                  piece.bytes, peer, Tag::contribution));
      bytes_sent_ += piece.bytes;
    }
  }
}

void OrderedReducer::post_results(const SlicedReduction& reduction) {
  // In place: a peer sends its sum only when it has all of what is sent from here.
  for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
    if (peer == link_.rank()) continue;
    for (const Piece& piece : pieces_of(slice_bytes(reduction, peer))) {
      results_.push_back(link_.recv(reduction.results + slice_offset(reduction, peer) + piece.begin,
                                    piece.bytes, peer, Tag::result));
    }
  }
}

void OrderedReducer::post_contributions(const Piece& piece, std::size_t half) {
  contributions_[half].clear();
  for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
    if (peer == link_.rank()) continue;
    contributions_[half].push_back(
        link_.recv(scratch(peer, half), piece.bytes, peer, Tag::contribution));
  }
}

void OrderedReducer::reduce_own(const SlicedReduction& reduction, const base::Deadline& deadline) {
  const std::int64_t rank = link_.rank();
  const auto pieces = pieces_of(slice_bytes(reduction, rank));
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(link_.size()));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const std::size_t half = i % 2;
    link_.wait(contributions_[half], deadline);
    for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
      inputs[static_cast<std::size_t>(peer)] =
          peer == rank ? reduction.input + slice_offset(reduction, rank) + piece.begin
                       : scratch(peer, half);
    }
    std::byte* sum = reduction.output + piece.begin;
    reduce_in_tree_order(inputs, sum, piece.bytes / element_size(reduction.dtype), reduction.dtype,
                         reduction.op);
    if (i + 2 < pieces.size()) post_contributions(pieces[i + 2], half);
    if (reduction.results == nullptr) continue;
    for (std::int64_t step = 1; step < link_.size(); ++step) {
      const std::int64_t peer = (rank + step) % link_.size();
      sends_.push_back(link_.send(sum, piece.bytes, peer, Tag::result));
      bytes_sent_ += piece.bytes;
    }
  }
}

std::int64_t OrderedReducer::run(const SlicedReduction& reduction, const base::Deadline& deadline) {
  piece_bytes_ = bytes_of_piece(link_.size());
  reserve_scratch();
  bytes_sent_ = 0;

  const auto own_pieces = pieces_of(slice_bytes(reduction, link_.rank()));
  for (std::size_t half = 0; half < std::min<std::size_t>(2, own_pieces.size()); ++half) {
    post_contributions(own_pieces[half], half);
  }
  if (reduction.results != nullptr) post_results(reduction);
  post_to_others(reduction);
  reduce_own(reduction, deadline);
  link_.wait(results_, deadline);
  link_.wait(sends_, deadline);
  sends_.clear();
  results_.clear();
  return bytes_sent_;
}

std::int64_t OrderedReducer::run_small(std::byte* data, std::int64_t count, at::ScalarType dtype,
                                       ReduceOp op, const base::Deadline& deadline) {
  const std::int64_t bytes = count * element_size(dtype);
  piece_bytes_ = bytes;
  reserve_scratch();
  post_contributions({.begin = 0, .bytes = bytes}, 0);
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(link_.size()));
  for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
    inputs[static_cast<std::size_t>(peer)] = peer == link_.rank() ? data : scratch(peer, 0);
    if (peer == link_.rank()) continue;
    sends_.push_back(link_.send(data, bytes, peer, Tag::contribution));
  }
  link_.wait(contributions_[0], deadline);
  link_.wait(sends_, deadline);  // before `data` is overwritten
  sends_.clear();
  reduce_in_tree_order(inputs, data, count, dtype, op);
  return bytes * (link_.size() - 1);
}

}  // namespace dtrain::comm
