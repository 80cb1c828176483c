#include "dtrain/comm/shm/shm_transport.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "dtrain/base/check.h"
#include "dtrain/base/hash.h"
#include "dtrain/comm/reduce.h"
#include "dtrain/comm/shm/all_to_all.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

namespace {

// A piece of a message: small enough to stay in the caches.
constexpr std::int64_t kPieceBytes = 256 << 10;
// One piece of a lane is filled while the other is read.
constexpr std::int64_t kLaneBytes = 2 * kPieceBytes;
// A block is summed before it is written to the others, while it is in the core's own cache.
constexpr std::int64_t kBlockBytes = 32 << 10;

std::int64_t element_size(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.element_size());
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t count) {
  if (to != from && count > 0) std::memcpy(to, from, static_cast<std::size_t>(count));
}

std::int64_t largest_part(const PartedTensor& tensor) {
  std::size_t largest = 0;
  for (std::int64_t rank = 0; rank < tensor.ranks(); ++rank) {
    largest = std::max(largest, tensor.part(rank).size());
  }
  return static_cast<std::int64_t>(largest);
}

CollectiveCall call_of(Collective op, const at::Tensor& tensor, std::int64_t variant = 0) {
  return {.op = op,
          .dtype = static_cast<std::int32_t>(tensor.scalar_type()),
          .count = tensor.numel(),
          .variant = variant};
}

}  // namespace

ShmTransport::ShmTransport(Seat seat, std::shared_ptr<Neighbours> neighbours)
    : meeting_(std::move(seat), std::move(neighbours)),
      lane_staging_(static_cast<std::size_t>(meeting_.size())) {}

ShmTransport::~ShmTransport() {
  if (!meeting_.is_closed()) return;
  // After a failure peers may still be at work on what this rank has laid out.
  meeting_.neighbours().keep(staging_);
  for (const auto& memory : lane_staging_) meeting_.neighbours().keep(memory);
}

std::int64_t ShmTransport::bytes(const GroupLoad& load) {
  return (load.is_first ? ControlBlock::common_bytes_for(load.size) : 0) +
         (load.foreign > kSmallBytes ? staging_bytes(load.size) : 0) + load.peers * kLaneBytes;
}

template <typename Body>
std::int64_t ShmTransport::guarded(std::initializer_list<at::Tensor> tensors, Body body) {
  try {
    return body();
  } catch (...) {
    for (const at::Tensor& tensor : tensors) {
      meeting_.neighbours().keep(std::make_shared<at::Tensor>(tensor));
    }
    throw;
  }
}

std::byte* ShmTransport::Sources::at(std::int64_t rank, std::int64_t offset,
                                     std::int64_t staged_from) const {
  const auto index = static_cast<std::size_t>(rank);
  return data[index] + (staged[index] ? offset - staged_from : offset);
}

std::byte* ShmTransport::staging() {
  if (!staging_) staging_ = meeting_.neighbours().allocate(staging_bytes(meeting_.size()));
  return staging_.get();
}

void ShmTransport::lay_out(const LargeCall& large, bool staged, const base::Deadline& deadline) {
  Slot& slot = meeting_.own_slot();
  slot.offer = {.call = large.call, .location = 0, .staged = staged ? 1U : 0U};
  if (large.is_read) {
    slot.offer.location = meeting_.location_of(staged ? staging() : bytes_of(large.tensor));
  }
  meeting_.arrive_with_call(deadline);
  sources_.data.clear();
  sources_.staged.clear();
  sources_.any_staged = false;
  for (std::int64_t rank = 0; rank < meeting_.size(); ++rank) {
    const Offer& offer = meeting_.slot_of(rank).offer;
    sources_.data.push_back(meeting_.at(rank, offer.location));
    sources_.staged.push_back(offer.staged != 0);
    sources_.any_staged = sources_.any_staged || offer.staged != 0;
  }
}

template <typename Stage, typename Work, typename Fetch>
void ShmTransport::run(const LargeCall& large, const base::Deadline& deadline, Stage stage,
                       Work work, Fetch fetch) {
  const bool staged = large.is_read && !meeting_.neighbours().reachable(
                                           bytes_of(large.tensor), size_in_bytes(large.tensor));
  const auto chunk_at = [&](std::int64_t first) {
    return std::min(large.staged_count, large.total - first);
  };
  if (staged) stage(0, chunk_at(0));
  lay_out(large, staged, deadline);
  for (std::int64_t first = 0; first < large.total;) {
    const std::int64_t count = sources_.any_staged ? chunk_at(first) : large.total;
    if (first > 0) {
      if (staged) stage(first, count);
      meeting_.arrive(deadline);
    }
    work(first, count);
    meeting_.arrive(deadline);
    if (staged) fetch(first, count);
    first += count;
  }
}

// --- all_reduce ----------------------------------------------------------------------------------

std::int64_t ShmTransport::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                      const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(tensor);
  return guarded({tensor}, [&] {
    if (bytes > kSmallBytes) return all_reduce_large(tensor, op, deadline);
    meeting_.exchange(call_of(Collective::all_reduce, tensor, static_cast<std::int64_t>(op)),
                      bytes_of(tensor), bytes, deadline);
    reduce_in_tree_order(meeting_.payloads(0), bytes_of(tensor), tensor.numel(),
                         tensor.scalar_type(), op);
    return bytes * (meeting_.size() - 1);
  });
}

std::int64_t ShmTransport::all_reduce_large(const at::Tensor& tensor, ReduceOp op,
                                            const base::Deadline& deadline) {
  const std::int64_t size = element_size(tensor);
  const LargeCall large{
      .call = call_of(Collective::all_reduce, tensor, static_cast<std::int64_t>(op)),
      .tensor = tensor,
      .total = tensor.numel(),
      .staged_count = staging_bytes(meeting_.size()) / size};
  std::int64_t own_elements = 0;
  run(
      large, deadline,
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(staging(), bytes_of(tensor) + first * size, count * size);
      },
      [&](std::int64_t first, std::int64_t count) {
        // This rank alone touches slice `rank` of the chunk, of every rank's tensor.
        const std::int64_t begin = slice_begin(count, meeting_.size(), meeting_.rank());
        const std::int64_t end = slice_begin(count, meeting_.size(), meeting_.rank() + 1);
        reduce_and_spread(first, first + begin, first + end, large.call);
        own_elements += end - begin;
      },
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(bytes_of(tensor) + first * size, staging(), count * size);
      });
  return size_in_bytes(tensor) + own_elements * size * (meeting_.size() - 2);
}

void ShmTransport::reduce_and_spread(std::int64_t chunk_begin, std::int64_t begin, std::int64_t end,
                                     const CollectiveCall& call) {
  const auto dtype = static_cast<at::ScalarType>(call.dtype);
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t block = kBlockBytes / size;
  inputs_.resize(sources_.data.size());
  for (std::int64_t first = begin; first < end; first += block) {
    const std::int64_t count = std::min(block, end - first);
    const auto part_of = [&](std::int64_t rank) {
      return sources_.at(rank, first * size, chunk_begin * size);
    };
    for (std::int64_t rank = 0; rank < meeting_.size(); ++rank) {
      inputs_[static_cast<std::size_t>(rank)] = part_of(rank);
    }
    std::byte* own = part_of(meeting_.rank());
    reduce_in_tree_order(inputs_, own, count, dtype, static_cast<ReduceOp>(call.variant));
    for (std::int64_t rank = 0; rank < meeting_.size(); ++rank) {
      copy_bytes(part_of(rank), own, count * size);
    }
  }
}

// --- reduce_scatter ------------------------------------------------------------------------------

std::int64_t ShmTransport::reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                          const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(input);
  return guarded({input, output}, [&] {
    if (bytes > kSmallBytes) return reduce_scatter_large(input, output, deadline);
    meeting_.exchange(call_of(Collective::reduce_scatter, input), bytes_of(input), bytes, deadline);
    reduce_in_tree_order(meeting_.payloads(meeting_.rank() * size_in_bytes(output)),
                         bytes_of(output), output.numel(), output.scalar_type(), ReduceOp::sum);
    return bytes - size_in_bytes(output);
  });
}

std::int64_t ShmTransport::reduce_scatter_large(const at::Tensor& input, const at::Tensor& output,
                                                const base::Deadline& deadline) {
  const std::int64_t size = element_size(input);
  const std::int64_t ranks = meeting_.size();
  const std::int64_t slice = output.numel();
  // The staging area holds the same part of every slice.
  const std::int64_t staged = staged_slice(ranks, size);
  inputs_.resize(static_cast<std::size_t>(ranks));
  run(
      LargeCall{.call = call_of(Collective::reduce_scatter, input),
                .tensor = input,
                .total = slice,
                .staged_count = staged},
      deadline,
      [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          copy_bytes(staging() + rank * staged * size,
                     bytes_of(input) + (rank * slice + first) * size, count * size);
        }
      },
      [&](std::int64_t first, std::int64_t count) {
        for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
          const std::int64_t offset =
              sources_.staged[rank] ? meeting_.rank() * staged : meeting_.rank() * slice + first;
          inputs_[rank] = sources_.data[rank] + offset * size;
        }
        reduce_in_tree_order(inputs_, bytes_of(output) + first * size, count, output.scalar_type(),
                             ReduceOp::sum);
      },
      [](std::int64_t, std::int64_t) {});
  return size_in_bytes(input) - size_in_bytes(output);
}

// --- all_gather, all_to_all ----------------------------------------------------------------------

std::int64_t ShmTransport::all_gather(const at::Tensor& input, const PartedTensor& output,
                                      const base::Deadline& deadline) {
  const CollectiveCall call =
      call_of(Collective::all_gather, output.tensor(),
              static_cast<std::int64_t>(base::hash_bytes(std::as_bytes(output.begins()))));
  return guarded({input, output.tensor()}, [&] {
    if (largest_part(output) > kSmallBytes) {
      gather_large(call, input, output, deadline);
    } else {
      meeting_.exchange(call, bytes_of(input), size_in_bytes(input), deadline);
      for (std::int64_t rank = 0; rank < meeting_.size(); ++rank) {
        const std::span<std::byte> part = output.part(rank);
        copy_bytes(part.data(), meeting_.slot_of(rank).data, std::ssize(part));
      }
    }
    return size_in_bytes(input) * (meeting_.size() - 1);
  });
}

void ShmTransport::gather_large(const CollectiveCall& call, const at::Tensor& input,
                                const PartedTensor& output, const base::Deadline& deadline) {
  const auto within = [](std::int64_t bytes, std::int64_t first, std::int64_t count) {
    return std::clamp<std::int64_t>(bytes - first, 0, count);
  };
  run(
      LargeCall{.call = call,
                .tensor = input,
                .total = largest_part(output),
                .staged_count = staging_bytes(meeting_.size()),
                .is_read = input.numel() > 0},
      deadline,
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(staging(), bytes_of(input) + first, within(size_in_bytes(input), first, count));
      },
      [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t step = 1; step <= meeting_.size(); ++step) {
          const std::int64_t rank = (meeting_.rank() + step) % meeting_.size();  // not all from 0
          const std::span<std::byte> part = output.part(rank);
          const std::byte* from =
              rank == meeting_.rank() ? bytes_of(input) + first : sources_.at(rank, first, first);
          copy_bytes(part.data() + first, from, within(std::ssize(part), first, count));
        }
      },
      [](std::int64_t, std::int64_t) {});
}

std::int64_t ShmTransport::all_to_all(const PartedTensor& input, const PartedTensor& output,
                                      const base::Deadline& deadline) {
  return guarded({input.tensor(), output.tensor()}, [&] {
    AllToAll(meeting_, staging(), input, output).run(deadline);
    return size_in_bytes(input.tensor()) - std::ssize(input.part(meeting_.rank()));
  });
}

// --- broadcast, barrier --------------------------------------------------------------------------

std::int64_t ShmTransport::broadcast(const at::Tensor& tensor, std::int64_t root,
                                     const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(tensor);
  return guarded({tensor}, [&] {
    if (bytes > kSmallBytes) {
      broadcast_large(tensor, root, deadline);
    } else {
      const bool mine = meeting_.rank() == root;
      meeting_.exchange(call_of(Collective::broadcast, tensor, root), bytes_of(tensor),
                        mine ? bytes : 0, deadline);
      if (!mine) copy_bytes(bytes_of(tensor), meeting_.slot_of(root).data, bytes);
    }
    return meeting_.rank() == root ? bytes * (meeting_.size() - 1) : 0;
  });
}

void ShmTransport::broadcast_large(const at::Tensor& tensor, std::int64_t root,
                                   const base::Deadline& deadline) {
  const bool is_root = meeting_.rank() == root;
  run(
      LargeCall{.call = call_of(Collective::broadcast, tensor, root),
                .tensor = tensor,
                .total = size_in_bytes(tensor),
                .staged_count = staging_bytes(meeting_.size()),
                .is_read = is_root},
      deadline,
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(staging(), bytes_of(tensor) + first, count);
      },
      [&](std::int64_t first, std::int64_t count) {
        if (!is_root) copy_bytes(bytes_of(tensor) + first, sources_.at(root, first, first), count);
      },
      [](std::int64_t, std::int64_t) {});
}

std::int64_t ShmTransport::barrier(const base::Deadline& deadline) {
  meeting_.exchange({.op = Collective::barrier}, nullptr, 0, deadline);
  return 0;
}

// --- messages ------------------------------------------------------------------------------------

std::byte* ShmTransport::lane_staging(std::int64_t peer) {
  std::shared_ptr<std::byte>& memory = lane_staging_[static_cast<std::size_t>(peer)];
  if (!memory) memory = meeting_.neighbours().allocate(kLaneBytes);
  return memory.get();
}

std::int64_t ShmTransport::send(const at::Tensor& tensor, std::int64_t peer,
                                const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(tensor);
  const bool direct = meeting_.neighbours().reachable(bytes_of(tensor), bytes);
  return guarded({tensor}, [&] {
    std::int64_t first = 0;
    do {  // one piece even for an empty message
      const std::int64_t count = direct ? bytes : std::min(kPieceBytes, bytes - first);
      const std::uint32_t number = meeting_.wait_for_room(peer, deadline);
      std::byte* piece = bytes_of(tensor) + first;
      if (!direct) {
        piece = lane_staging(peer) + number % 2 * kPieceBytes;
        copy_bytes(piece, bytes_of(tensor) + first, count);
      }
      meeting_.post(
          peer, number,
          {.location = meeting_.location_of(piece), .bytes = count, .message_bytes = bytes});
      first += count;
    } while (first < bytes);
    meeting_.wait_until_taken(peer, deadline);
    return bytes;
  });
}

std::int64_t ShmTransport::recv(const at::Tensor& tensor, std::int64_t peer,
                                const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(tensor);
  std::int64_t first = 0;
  do {
    const Piece piece = meeting_.wait_for_piece(peer, deadline);
    DTRAIN_CHECK(piece.message_bytes == bytes, "sent {} bytes, expected {}", piece.message_bytes,
                 bytes);
    copy_bytes(bytes_of(tensor) + first, meeting_.at(peer, piece.location), piece.bytes);
    meeting_.take(peer);
    first += piece.bytes;
  } while (first < bytes);
  return 0;
}

}  // namespace dtrain::comm
