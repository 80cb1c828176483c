#include "dtrain/comm/internal/gloo/gloo_transport.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/comm/reduce.h"

namespace dtrain::comm {
namespace {

constexpr std::int64_t kScratchBytes = std::int64_t{4} << 20;
constexpr std::int64_t kWholeBytes = 16 << 10;
constexpr std::int64_t kLargestPiece = 1 << 20;

std::int64_t element_size(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// The size of a piece, where a reduction is carried out in pieces.
std::int64_t bytes_of_piece(std::int64_t ranks) {
  const std::int64_t grain = kSliceGrain * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t room = kScratchBytes / (2 * (ranks - 1));
  return std::max(grain, std::min(room, kLargestPiece) / grain * grain);
}

/// Returns whether OrderedReducer::run_small is quicker for a tensor of that size.
bool is_small(std::int64_t ranks, std::int64_t bytes) {
  return bytes <= kWholeBytes && bytes * (ranks - 1) <= kScratchBytes;
}

/// One reduction: rank p owns slice p, receives everyone's contribution to it and adds them.
struct SlicedReduction {
  const std::byte* input = nullptr;  ///< all slices, one after the other
  std::byte* output = nullptr;       ///< this rank's slice; may lie in `input`
  at::ScalarType dtype = at::ScalarType::Float;
  ReduceOp op = ReduceOp::sum;
  std::vector<std::int64_t> begins = {};  ///< of each slice in elements, and the end of the last
  std::byte* results = nullptr;  ///< where the other ranks' sums go (all slices); null: nowhere

  /// Where a slice begins. Units: bytes.
  [[nodiscard]] std::int64_t offset(std::int64_t slice) const {
    return begins[static_cast<std::size_t>(slice)] * element_size(dtype);
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t slice) const {
    return offset(slice + 1) - offset(slice);
  }
};

/// Carries reductions out, in pieces that need at most kScratchBytes beside the tensors.
///
/// Source:  direct exchange of slices, Thakur et al., Optimization of Collective Communication
///          Operations in MPICH (2005). Differs: pieces, so that memory is bounded and adding
///          overlaps receiving; contributions are added in tree order.
/// Threads: one caller at a time.
class OrderedReducer {
 public:
  explicit OrderedReducer(Link& link) : link_(link) {}

  /// Returns the bytes sent.
  std::int64_t run(const SlicedReduction& reduction, const base::Deadline& deadline) {
    piece_bytes_ = bytes_of_piece(link_.size());
    reserve_scratch();
    bytes_sent_ = 0;

    const auto own_pieces = pieces_of(reduction.bytes(link_.rank()));
    for (std::size_t half = 0; half < std::min<std::size_t>(2, own_pieces.size()); ++half) {
      post_contributions(own_pieces[half], half);
    }
    if (reduction.results != nullptr) post_results(reduction);
    post_to_others(reduction);
    reduce_own(reduction, own_pieces, deadline);
    link_.wait(results_, deadline);
    link_.wait(sends_, deadline);
    sends_.clear();
    results_.clear();
    return bytes_sent_;
  }

  /// Every rank gets every rank's whole tensor and adds them itself: one exchange instead of two,
  /// for small ones.
  std::int64_t run_small(std::byte* data, std::int64_t count, at::ScalarType dtype, ReduceOp op,
                         const base::Deadline& deadline) {
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

 private:
  struct Piece {
    std::int64_t begin = 0;  // bytes from the start of the slice
    std::int64_t bytes = 0;
  };

  // Makes room for two pieces from each other rank.
  void reserve_scratch() {
    const std::int64_t bytes = 2 * (link_.size() - 1) * piece_bytes_;
    if (scratch_.defined() && scratch_.numel() >= bytes) return;
    scratch_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  }

  [[nodiscard]] std::byte* scratch(std::int64_t peer, std::size_t half) {
    const std::int64_t index = (peer < link_.rank() ? peer : peer - 1) * 2;
    return bytes_of(scratch_) + (index + static_cast<std::int64_t>(half)) * piece_bytes_;
  }

  [[nodiscard]] std::vector<Piece> pieces_of(std::int64_t slice_bytes) const {
    std::vector<Piece> pieces;
    for (std::int64_t begin = 0; begin < slice_bytes; begin += piece_bytes_) {
      pieces.push_back({begin, std::min(piece_bytes_, slice_bytes - begin)});
    }
    return pieces;
  }

  void post_to_others(const SlicedReduction& reduction) {
    for (std::int64_t step = 1; step < link_.size(); ++step) {
      const std::int64_t peer = (link_.rank() + step) % link_.size();  // not all to rank 0 first
      for (const Piece& piece : pieces_of(reduction.bytes(peer))) {
        send(reduction.input + reduction.offset(peer) + piece.begin, piece.bytes, peer,
             Tag::contribution);
      }
    }
  }

  void post_results(const SlicedReduction& reduction) {
    // In place: a peer sends its sum only when it has all of what is sent from here.
    for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
      if (peer == link_.rank()) continue;
      for (const Piece& piece : pieces_of(reduction.bytes(peer))) {
        results_.push_back(link_.recv(reduction.results + reduction.offset(peer) + piece.begin,
                                      piece.bytes, peer, Tag::result));
      }
    }
  }

  void post_contributions(const Piece& piece, std::size_t half) {
    contributions_[half].clear();
    for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
      if (peer == link_.rank()) continue;
      contributions_[half].push_back(
          link_.recv(scratch(peer, half), piece.bytes, peer, Tag::contribution));
    }
  }

  void reduce_own(const SlicedReduction& reduction, const std::vector<Piece>& pieces,
                  const base::Deadline& deadline) {
    const std::int64_t rank = link_.rank();
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(link_.size()));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      const std::size_t half = i % 2;
      link_.wait(contributions_[half], deadline);
      for (std::int64_t peer = 0; peer < link_.size(); ++peer) {
        inputs[static_cast<std::size_t>(peer)] =
            peer == rank ? reduction.input + reduction.offset(rank) + piece.begin
                         : scratch(peer, half);
      }
      std::byte* sum = reduction.output + piece.begin;
      reduce_in_tree_order(inputs, sum, piece.bytes / element_size(reduction.dtype),
                           reduction.dtype, reduction.op);
      if (i + 2 < pieces.size()) post_contributions(pieces[i + 2], half);
      if (reduction.results == nullptr) continue;
      for (std::int64_t step = 1; step < link_.size(); ++step) {
        send(sum, piece.bytes, (rank + step) % link_.size(), Tag::result);
      }
    }
  }

  void send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
    sends_.push_back(link_.send(data, bytes, peer, tag));
    bytes_sent_ += bytes;
  }

  Link& link_;
  at::Tensor scratch_;  // (bytes) uint8: counted as all tensors are
  std::int64_t piece_bytes_ = 0;
  // These belong to the reduction under way:
  std::vector<Message> sends_;
  std::vector<Message> results_;
  std::vector<Message> contributions_[2];
  std::int64_t bytes_sent_ = 0;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::unique_ptr<Link> link, Reduction reduction)
      : link_(std::move(link)), reducer_(*link_), reduction_(reduction) {}

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override {
    return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
  }
  [[nodiscard]] std::int64_t awaited() const noexcept override { return link_->awaited(); }
  void close(const std::string& reason) noexcept override { link_->close(reason); }

 private:
  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline) {
    const auto& [tensor, op] = call;
    if (tensor.numel() == 0) return 0;
    const std::int64_t size = link_->size();
    const std::int64_t bytes = size_in_bytes(tensor);
    // Gloo's own maxima lose what is no number.
    if (reduction_ == Reduction::fast && op == ReduceOp::sum) {
      link_->all_reduce(tensor, deadline);
      return 2 * (size - 1) * bytes / size;  // of gloo's ring
    }
    if (is_small(size, bytes)) {
      return reducer_.run_small(bytes_of(tensor), tensor.numel(), tensor.scalar_type(), op,
                                deadline);
    }
    SlicedReduction reduction{.input = bytes_of(tensor),
                              .dtype = tensor.scalar_type(),
                              .op = op,
                              .results = bytes_of(tensor)};
    for (std::int64_t slice = 0; slice <= size; ++slice) {
      reduction.begins.push_back(slice_begin(tensor.numel(), size, slice));
    }
    reduction.output = bytes_of(tensor) + reduction.offset(link_->rank());
    return reducer_.run(reduction, deadline);
  }

  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline) {
    SlicedReduction reduction{.input = bytes_of(call.input),
                              .output = bytes_of(call.output),
                              .dtype = call.input.scalar_type()};
    for (std::int64_t slice = 0; slice <= link_->size(); ++slice) {
      reduction.begins.push_back(slice * call.output.numel());
    }
    return reducer_.run(reduction, deadline);
  }

  std::int64_t execute(const AllGather& call, const base::Deadline& deadline) {
    const std::span<std::byte> own = call.output.part(link_->rank());
    if (own.data() != bytes_of(call.input)) {
      std::copy_n(bytes_of(call.input), own.size(), own.data());
    }
    return exchange([&](std::int64_t) { return own; },
                    [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
  }

  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline) {
    std::ranges::copy(call.input.part(link_->rank()), call.output.part(link_->rank()).data());
    return exchange([&](std::int64_t peer) { return call.input.part(peer); },
                    [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
  }

  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline) {
    const std::span<std::byte> whole(bytes_of(call.tensor), call.tensor.nbytes());
    const std::span<std::byte> nothing;
    const bool is_root = link_->rank() == call.root;
    return exchange([&](std::int64_t) { return is_root ? whole : nothing; },
                    [&](std::int64_t peer) { return peer == call.root ? whole : nothing; },
                    deadline);
  }

  std::int64_t execute(const Send& call, const base::Deadline& deadline) {
    const std::int64_t bytes = size_in_bytes(call.tensor);
    if (bytes == 0) return 0;
    link_->wait(link_->send(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point),
                deadline);
    return bytes;
  }

  std::int64_t execute(const Recv& call, const base::Deadline& deadline) {
    const std::int64_t bytes = size_in_bytes(call.tensor);
    if (bytes == 0) return 0;
    link_->wait(link_->recv(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point),
                deadline);
    return 0;
  }

  std::int64_t execute(const Barrier&, const base::Deadline& deadline) {
    std::byte token{};
    return reducer_.run_small(&token, 1, at::ScalarType::Byte, ReduceOp::max, deadline);
  }

  /// Sends each peer the bytes sent(peer) and receives received(peer); returns the bytes sent.
  template <typename Sent, typename Received>
  std::int64_t exchange(Sent sent, Received received, const base::Deadline& deadline) {
    const std::int64_t size = link_->size();
    std::vector<Message> messages;  // receives first: what arrives has a place to go
    for (std::int64_t peer = 0; peer < size; ++peer) {
      const std::span<std::byte> part = received(peer);
      if (peer == link_->rank() || part.empty()) continue;
      messages.push_back(link_->recv(part.data(), std::ssize(part), peer, Tag::collective));
    }
    std::int64_t bytes_sent = 0;
    for (std::int64_t step = 1; step < size; ++step) {
      const std::int64_t peer = (link_->rank() + step) % size;  // not all to rank 0 first
      const std::span<std::byte> part = sent(peer);
      if (part.empty()) continue;
      messages.push_back(link_->send(part.data(), std::ssize(part), peer, Tag::collective));
      bytes_sent += std::ssize(part);
    }
    link_->wait(messages, deadline);
    return bytes_sent;
  }

  std::unique_ptr<Link> link_;
  OrderedReducer reducer_;
  Reduction reduction_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(std::unique_ptr<Link> link, Reduction reduction) {
  return std::make_unique<GlooTransport>(std::move(link), reduction);
}

std::int64_t gloo_transport_bytes(const GroupLoad& load) {
  const std::int64_t piece =
      is_small(load.size, load.reduced) ? load.reduced : bytes_of_piece(load.size);
  return 2 * (load.size - 1) * piece;
}

}  // namespace dtrain::comm
