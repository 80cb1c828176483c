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
constexpr std::int64_t kMaxChunkBytes = 1 << 20;

std::int64_t element_size(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Chunk size of a reduction, in bytes.
std::int64_t chunk_bytes(std::int64_t ranks) {
  const std::int64_t grain = kSliceGrain * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t room = kScratchBytes / (2 * (ranks - 1));
  return std::max(grain, std::min(room, kMaxChunkBytes) / grain * grain);
}

/// Returns whether OrderedReducer::run_small is faster for a tensor of that size.
bool is_small(std::int64_t ranks, std::int64_t bytes) {
  return bytes <= kWholeBytes && bytes * (ranks - 1) <= kScratchBytes;
}

/// One reduction: rank p owns slice p, receives every rank's contribution to it and adds them.
struct SlicedReduction {
  const std::byte* input = nullptr;  ///< all slices, one after the other
  std::byte* output = nullptr;       ///< this rank's slice; may lie in `input`
  at::ScalarType dtype = at::ScalarType::Float;
  ReduceOp op = ReduceOp::sum;
  std::vector<std::int64_t> begins = {};  ///< slice boundaries in elements, including the end
  std::byte* results = nullptr;  ///< receives the other ranks' sums (all slices); null: discarded

  /// Start of a slice. Units: bytes.
  [[nodiscard]] std::int64_t offset(std::int64_t slice) const {
    return begins[static_cast<std::size_t>(slice)] * element_size(dtype);
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t slice) const {
    return offset(slice + 1) - offset(slice);
  }
};

/// Runs reductions in chunks that need at most kScratchBytes in addition to the tensors.
///
/// Source:  direct exchange of slices, Thakur et al., Optimization of Collective Communication
///          Operations in MPICH (2005). Differs: chunks, so that memory is bounded and adding
///          overlaps receiving; contributions are added in tree order.
/// Threads: one caller at a time.
class OrderedReducer {
 public:
  explicit OrderedReducer(GlooMessenger& messenger) : messenger_(messenger) {}

  /// Returns the bytes sent.
  std::int64_t run(const SlicedReduction& reduction, const base::Deadline& deadline) {
    chunk_bytes_ = chunk_bytes(messenger_.size());
    reserve_scratch();
    bytes_sent_ = 0;

    const auto own_chunks = chunks_of(reduction.bytes(messenger_.rank()));
    for (std::size_t buffer = 0; buffer < std::min<std::size_t>(2, own_chunks.size()); ++buffer) {
      post_contributions(own_chunks[buffer], buffer);
    }
    if (reduction.results != nullptr) post_results(reduction);
    post_to_others(reduction);
    reduce_own(reduction, own_chunks, deadline);
    messenger_.wait(results_, deadline);
    messenger_.wait(sends_, deadline);
    sends_.clear();
    results_.clear();
    return bytes_sent_;
  }

  /// For small tensors: every rank receives all whole tensors and adds them itself, in one exchange
  /// instead of two.
  std::int64_t run_small(std::byte* data, std::int64_t count, at::ScalarType dtype, ReduceOp op,
                         const base::Deadline& deadline) {
    const std::int64_t bytes = count * element_size(dtype);
    chunk_bytes_ = bytes;
    reserve_scratch();
    post_contributions({.begin = 0, .bytes = bytes}, 0);
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(messenger_.size()));
    for (std::int64_t peer = 0; peer < messenger_.size(); ++peer) {
      inputs[static_cast<std::size_t>(peer)] = peer == messenger_.rank() ? data : scratch(peer, 0);
      if (peer == messenger_.rank()) continue;
      sends_.push_back(messenger_.send(data, bytes, peer, Tag::contribution));
    }
    messenger_.wait(contributions_[0], deadline);
    messenger_.wait(sends_, deadline);  // before `data` is overwritten
    sends_.clear();
    reduce_in_tree_order(inputs, data, count, dtype, op);
    return bytes * (messenger_.size() - 1);
  }

 private:
  struct Chunk {
    std::int64_t begin = 0;  // bytes from the start of the slice
    std::int64_t bytes = 0;
  };

  // Reserves two chunk buffers for each peer.
  void reserve_scratch() {
    const std::int64_t bytes = 2 * (messenger_.size() - 1) * chunk_bytes_;
    if (scratch_.defined() && scratch_.numel() >= bytes) return;
    scratch_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  }

  [[nodiscard]] std::byte* scratch(std::int64_t peer, std::size_t buffer) {
    const std::int64_t index = (peer < messenger_.rank() ? peer : peer - 1) * 2;
    return bytes_of(scratch_) + (index + static_cast<std::int64_t>(buffer)) * chunk_bytes_;
  }

  [[nodiscard]] std::vector<Chunk> chunks_of(std::int64_t slice_bytes) const {
    std::vector<Chunk> chunks;
    for (std::int64_t begin = 0; begin < slice_bytes; begin += chunk_bytes_) {
      chunks.push_back({begin, std::min(chunk_bytes_, slice_bytes - begin)});
    }
    return chunks;
  }

  void post_to_others(const SlicedReduction& reduction) {
    for (std::int64_t step = 1; step < messenger_.size(); ++step) {
      const std::int64_t peer =
          (messenger_.rank() + step) % messenger_.size();  // not all to rank 0 first
      for (const Chunk& chunk : chunks_of(reduction.bytes(peer))) {
        send(reduction.input + reduction.offset(peer) + chunk.begin, chunk.bytes, peer,
             Tag::contribution);
      }
    }
  }

  void post_results(const SlicedReduction& reduction) {
    // Safe in place: a peer sends a sum only after it has received this rank's contribution to it.
    for (std::int64_t peer = 0; peer < messenger_.size(); ++peer) {
      if (peer == messenger_.rank()) continue;
      for (const Chunk& chunk : chunks_of(reduction.bytes(peer))) {
        results_.push_back(messenger_.recv(reduction.results + reduction.offset(peer) + chunk.begin,
                                           chunk.bytes, peer, Tag::result));
      }
    }
  }

  void post_contributions(const Chunk& chunk, std::size_t buffer) {
    contributions_[buffer].clear();
    for (std::int64_t peer = 0; peer < messenger_.size(); ++peer) {
      if (peer == messenger_.rank()) continue;
      contributions_[buffer].push_back(
          messenger_.recv(scratch(peer, buffer), chunk.bytes, peer, Tag::contribution));
    }
  }

  void reduce_own(const SlicedReduction& reduction, const std::vector<Chunk>& chunks,
                  const base::Deadline& deadline) {
    const std::int64_t rank = messenger_.rank();
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(messenger_.size()));
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Chunk& chunk = chunks[i];
      const std::size_t buffer = i % 2;
      messenger_.wait(contributions_[buffer], deadline);
      for (std::int64_t peer = 0; peer < messenger_.size(); ++peer) {
        inputs[static_cast<std::size_t>(peer)] =
            peer == rank ? reduction.input + reduction.offset(rank) + chunk.begin
                         : scratch(peer, buffer);
      }
      std::byte* sum = reduction.output + chunk.begin;
      reduce_in_tree_order(inputs, sum, chunk.bytes / element_size(reduction.dtype),
                           reduction.dtype, reduction.op);
      if (i + 2 < chunks.size()) post_contributions(chunks[i + 2], buffer);
      if (reduction.results == nullptr) continue;
      for (std::int64_t step = 1; step < messenger_.size(); ++step) {
        send(sum, chunk.bytes, (rank + step) % messenger_.size(), Tag::result);
      }
    }
  }

  void send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
    sends_.push_back(messenger_.send(data, bytes, peer, tag));
    bytes_sent_ += bytes;
  }

  GlooMessenger& messenger_;
  at::Tensor scratch_;  // (bytes) uint8; a tensor, so that it is counted as tensor memory
  std::int64_t chunk_bytes_ = 0;
  // State of the reduction under way:
  std::vector<Message> sends_;
  std::vector<Message> results_;
  std::vector<Message> contributions_[2];
  std::int64_t bytes_sent_ = 0;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::unique_ptr<GlooMessenger> messenger, Reduction reduction)
      : messenger_(std::move(messenger)), reducer_(*messenger_), reduction_(reduction) {}

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override {
    return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
  }
  [[nodiscard]] std::int64_t awaited() const noexcept override { return messenger_->awaited(); }
  void close(const std::string& reason) noexcept override { messenger_->close(reason); }

 private:
  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline) {
    const auto& [tensor, op] = call;
    if (tensor.numel() == 0) return 0;
    const std::int64_t size = messenger_->size();
    const std::int64_t bytes = size_in_bytes(tensor);
    // Gloo's own maximum may drop NaNs.
    if (reduction_ == Reduction::fast && op == ReduceOp::sum) {
      messenger_->all_reduce(tensor, deadline);
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
    reduction.output = bytes_of(tensor) + reduction.offset(messenger_->rank());
    return reducer_.run(reduction, deadline);
  }

  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline) {
    SlicedReduction reduction{.input = bytes_of(call.input),
                              .output = bytes_of(call.output),
                              .dtype = call.input.scalar_type()};
    for (std::int64_t slice = 0; slice <= messenger_->size(); ++slice) {
      reduction.begins.push_back(slice * call.output.numel());
    }
    return reducer_.run(reduction, deadline);
  }

  std::int64_t execute(const AllGather& call, const base::Deadline& deadline) {
    const std::span<std::byte> own = call.output.part(messenger_->rank());
    if (own.data() != bytes_of(call.input)) {
      std::copy_n(bytes_of(call.input), own.size(), own.data());
    }
    return exchange([&](std::int64_t) { return own; },
                    [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
  }

  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline) {
    std::ranges::copy(call.input.part(messenger_->rank()),
                      call.output.part(messenger_->rank()).data());
    return exchange([&](std::int64_t peer) { return call.input.part(peer); },
                    [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
  }

  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline) {
    const std::span<std::byte> whole(bytes_of(call.tensor), call.tensor.nbytes());
    const std::span<std::byte> nothing;
    const bool is_root = messenger_->rank() == call.root;
    return exchange([&](std::int64_t) { return is_root ? whole : nothing; },
                    [&](std::int64_t peer) { return peer == call.root ? whole : nothing; },
                    deadline);
  }

  std::int64_t execute(const Send& call, const base::Deadline& deadline) {
    const std::int64_t bytes = size_in_bytes(call.tensor);
    if (bytes == 0) return 0;
    messenger_->wait(messenger_->send(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point),
                     deadline);
    return bytes;
  }

  std::int64_t execute(const Recv& call, const base::Deadline& deadline) {
    const std::int64_t bytes = size_in_bytes(call.tensor);
    if (bytes == 0) return 0;
    messenger_->wait(messenger_->recv(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point),
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
    const std::int64_t size = messenger_->size();
    std::vector<Message> messages;  // receives first, so that messages arrive in posted buffers
    for (std::int64_t peer = 0; peer < size; ++peer) {
      const std::span<std::byte> part = received(peer);
      if (peer == messenger_->rank() || part.empty()) continue;
      messages.push_back(messenger_->recv(part.data(), std::ssize(part), peer, Tag::collective));
    }
    std::int64_t bytes_sent = 0;
    for (std::int64_t step = 1; step < size; ++step) {
      const std::int64_t peer = (messenger_->rank() + step) % size;  // not all to rank 0 first
      const std::span<std::byte> part = sent(peer);
      if (part.empty()) continue;
      messages.push_back(messenger_->send(part.data(), std::ssize(part), peer, Tag::collective));
      bytes_sent += std::ssize(part);
    }
    messenger_->wait(messages, deadline);
    return bytes_sent;
  }

  std::unique_ptr<GlooMessenger> messenger_;
  OrderedReducer reducer_;
  Reduction reduction_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(std::unique_ptr<GlooMessenger> messenger,
                                               Reduction reduction) {
  return std::make_unique<GlooTransport>(std::move(messenger), reduction);
}

std::int64_t gloo_transport_bytes(const GroupLoad& load) {
  const std::int64_t chunk =
      is_small(load.size, load.reduced) ? load.reduced : chunk_bytes(load.size);
  return 2 * (load.size - 1) * chunk;
}

}  // namespace dtrain::comm
