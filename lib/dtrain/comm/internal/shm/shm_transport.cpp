#include "dtrain/comm/internal/shm/shm_transport.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::comm {

namespace {

// A chunk of a message: small enough to stay in the caches.
constexpr std::int64_t kChunkBytes = 256 << 10;
// Double buffering: one chunk is filled while the receiver reads the other.
constexpr std::int64_t kPeerStagingBytes = 2 * kChunkBytes;
// A block is summed and then copied to the other ranks while it is still in the core's cache.
constexpr std::int64_t kBlockBytes = 32 << 10;

std::int64_t bytes_per_element(const at::Tensor& tensor) {
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

/// Runs one all-to-all in rounds. Every rank publishes a table with a chunk for each peer, and the
/// peers copy their chunks. An input outside shared memory is staged, in as many rounds as its
/// largest part needs. Each round takes two barriers.
class AllToAllRounds {
 public:
  /// staging: `staging_bytes` of memory that the peers can reach. Everything outlives this.
  AllToAllRounds(ShmContext& shm, ShmBarrier& barrier, std::byte* staging, const AllToAll& call)
      : shm_(shm),
        barrier_(barrier),
        table_(reinterpret_cast<Chunk*>(staging)),
        input_(call.input),
        output_(call.output),
        is_reachable_(
            shm.peer_memory().reachable(bytes_of(input_.tensor), size_in_bytes(input_.tensor))),
        chunk_bytes_(staging_bytes(shm.size()) / shm.size() -
                     static_cast<std::int64_t>(sizeof(Chunk))) {}

  /// Throws: TransportFailure; Error{internal} naming two ranks that expect different sizes.
  void run(const base::Deadline& deadline) {
    std::ranges::copy(input_.part(shm_.rank()), output_.part(shm_.rank()).data());
    bool has_more = true;
    for (std::int64_t first = 0; has_more; first += chunk_bytes_) {
      publish(first);
      barrier_.arrive_with_call(deadline);
      has_more = take(first);
      barrier_.arrive(deadline);  // then the chunks may be overwritten
    }
  }

 private:
  /// Publishes all peers' chunks of one round, from byte `first` of their parts.
  void publish(std::int64_t first) {
    BufferDescriptor& buffer = barrier_.own_slot().buffer;
    buffer = {.call = {.op = Collective::all_to_all,
                       .dtype = static_cast<std::int32_t>(input_.tensor.scalar_type())},
              .location = shm_.location_of(reinterpret_cast<const std::byte*>(table_))};
    for (std::int64_t peer = 0; peer < shm_.size(); ++peer) {
      const std::int64_t all = std::ssize(input_.part(peer));
      const std::span<std::byte> chunk = chunk_for(peer, first);
      table_[peer] = {.location = shm_.location_of(chunk.data()),
                      .bytes = std::ssize(chunk),
                      .message_bytes = all};
      if (!is_reachable_ && first + chunk_bytes_ < all) buffer.has_more = 1;
    }
  }

  /// The bytes of this part that a peer can read in this round.
  [[nodiscard]] std::span<std::byte> chunk_for(std::int64_t peer, std::int64_t first) {
    const std::span<std::byte> part = input_.part(peer);
    if (peer == shm_.rank() || first >= std::ssize(part)) return {};
    if (is_reachable_) return first == 0 ? part : std::span<std::byte>();
    std::byte* staged = reinterpret_cast<std::byte*>(table_ + shm_.size()) + peer * chunk_bytes_;
    const std::int64_t count = std::min(chunk_bytes_, std::ssize(part) - first);
    std::copy_n(part.data() + first, count, staged);
    return {staged, static_cast<std::size_t>(count)};
  }

  /// Copies this rank's chunks to byte `first` of its parts; returns whether any rank has more.
  [[nodiscard]] bool take(std::int64_t first) {
    const std::int64_t own = shm_.rank();
    bool has_more = false;
    for (std::int64_t step = 0; step < shm_.size(); ++step) {
      const std::int64_t peer = (own + step) % shm_.size();  // not all from rank 0 first
      const BufferDescriptor& buffer = barrier_.slot_of(peer).buffer;
      const Chunk chunk = reinterpret_cast<const Chunk*>(shm_.at(peer, buffer.location))[own];
      const std::span<std::byte> part = output_.part(peer);
      DTRAIN_CHECK(chunk.message_bytes == std::ssize(part),
                   "rank {} of a group has {} bytes for rank {}, which expects {}", peer,
                   chunk.message_bytes, own, std::ssize(part));
      std::copy_n(shm_.at(peer, chunk.location), chunk.bytes, part.data() + first);
      has_more = has_more || buffer.has_more != 0;
    }
    return has_more;
  }

  ShmContext& shm_;
  ShmBarrier& barrier_;
  Chunk* table_;  // by peer, at the start of the staging area; staged chunks follow
  const PartedTensor& input_;
  const PartedTensor& output_;
  bool is_reachable_;         // whether peers read the input itself
  std::int64_t chunk_bytes_;  // of a staged chunk, the same on every rank
};

}  // namespace

ShmTransport::ShmTransport(GroupMembership membership, std::shared_ptr<PeerMemory> peer_memory)
    : shm_(std::move(membership), std::move(peer_memory)),
      barrier_(shm_),
      mailboxes_(shm_),
      peer_staging_(static_cast<std::size_t>(shm_.size())) {}

ShmTransport::~ShmTransport() {
  if (!shm_.is_closed()) return;
  // After a failure peers may still access the staging areas.
  shm_.peer_memory().retain(staging_);
  for (const auto& memory : peer_staging_) shm_.peer_memory().retain(memory);
}

std::int64_t ShmTransport::bytes(const GroupLoad& load) {
  return (load.is_first ? ControlBlock::common_bytes_for(load.size) : 0) +
         (load.foreign > kSmallBytes ? staging_bytes(load.size) : 0) +
         load.peers * kPeerStagingBytes;
}

std::int64_t ShmTransport::run(const Operation& operation, const base::Deadline& deadline) {
  try {
    return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
  } catch (...) {
    // Keep the tensors: peers may still access them.
    shm_.peer_memory().retain(std::make_shared<Operation>(operation));
    throw;
  }
}

std::byte* ShmTransport::Sources::at(std::int64_t rank, std::int64_t offset,
                                     std::int64_t staged_from) const {
  const auto index = static_cast<std::size_t>(rank);
  return data[index] + (staged[index] ? offset - staged_from : offset);
}

std::byte* ShmTransport::staging() {
  if (!staging_) staging_ = shm_.peer_memory().allocate(staging_bytes(shm_.size()));
  return staging_.get();
}

void ShmTransport::publish(const LargeCall& large, bool staged, const base::Deadline& deadline) {
  Slot& slot = barrier_.own_slot();
  slot.buffer = {.call = large.call, .location = 0, .staged = staged ? 1U : 0U};
  if (large.is_read) {
    slot.buffer.location = shm_.location_of(staged ? staging() : bytes_of(large.tensor));
  }
  barrier_.arrive_with_call(deadline);
  sources_.data.clear();
  sources_.staged.clear();
  sources_.any_staged = false;
  for (std::int64_t rank = 0; rank < shm_.size(); ++rank) {
    const BufferDescriptor& buffer = barrier_.slot_of(rank).buffer;
    sources_.data.push_back(shm_.at(rank, buffer.location));
    sources_.staged.push_back(buffer.staged != 0);
    sources_.any_staged = sources_.any_staged || buffer.staged != 0;
  }
}

template <typename Stage, typename Work, typename Fetch>
void ShmTransport::process_chunks(const LargeCall& large, const base::Deadline& deadline,
                                  Stage stage, Work work, Fetch fetch) {
  const bool staged = large.is_read && !shm_.peer_memory().reachable(bytes_of(large.tensor),
                                                                     size_in_bytes(large.tensor));
  const auto chunk_at = [&](std::int64_t first) {
    return std::min(large.staged_count, large.total - first);
  };
  if (staged) stage(0, chunk_at(0));
  publish(large, staged, deadline);
  for (std::int64_t first = 0; first < large.total;) {
    const std::int64_t count = sources_.any_staged ? chunk_at(first) : large.total;
    if (first > 0) {
      if (staged) stage(first, count);
      barrier_.arrive(deadline);
    }
    work(first, count);
    barrier_.arrive(deadline);
    if (staged) fetch(first, count);
    first += count;
  }
}

// --- reductions ----------------------------------------------------------------------------------

std::int64_t ShmTransport::execute(const AllReduce& reduce, const base::Deadline& deadline) {
  const at::Tensor& tensor = reduce.tensor;
  const std::int64_t bytes = size_in_bytes(tensor);
  const CollectiveCall call =
      call_of(Collective::all_reduce, tensor, static_cast<std::int64_t>(reduce.op));
  if (bytes <= kSmallBytes) {
    barrier_.exchange(call, bytes_of(tensor), bytes, deadline);
    reduce_in_tree_order(barrier_.payloads(0), bytes_of(tensor), tensor.numel(),
                         tensor.scalar_type(), reduce.op);
    return bytes * (shm_.size() - 1);
  }
  const std::int64_t size = bytes_per_element(tensor);
  std::int64_t own_elements = 0;
  process_chunks(
      {.call = call,
       .tensor = tensor,
       .total = tensor.numel(),
       .staged_count = staging_bytes(shm_.size()) / size},
      deadline,
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(staging(), bytes_of(tensor) + first * size, count * size);
      },
      [&](std::int64_t first, std::int64_t count) {
        // Only this rank accesses slice `rank` of the chunk in every rank's tensor.
        const std::int64_t begin = slice_begin(count, shm_.size(), shm_.rank());
        const std::int64_t end = slice_begin(count, shm_.size(), shm_.rank() + 1);
        reduce_and_spread(first, first + begin, first + end, call);
        own_elements += end - begin;
      },
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(bytes_of(tensor) + first * size, staging(), count * size);
      });
  return bytes + own_elements * size * (shm_.size() - 2);
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
    for (std::int64_t rank = 0; rank < shm_.size(); ++rank) {
      inputs_[static_cast<std::size_t>(rank)] = part_of(rank);
    }
    std::byte* own = part_of(shm_.rank());
    reduce_in_tree_order(inputs_, own, count, dtype, static_cast<ReduceOp>(call.variant));
    for (std::int64_t rank = 0; rank < shm_.size(); ++rank) {
      copy_bytes(part_of(rank), own, count * size);
    }
  }
}

std::int64_t ShmTransport::execute(const ReduceScatter& reduce, const base::Deadline& deadline) {
  const at::Tensor& input = reduce.input;
  const at::Tensor& output = reduce.output;
  const std::int64_t bytes = size_in_bytes(input);
  const std::int64_t rank = shm_.rank();
  const CollectiveCall call = call_of(Collective::reduce_scatter, input);
  if (bytes <= kSmallBytes) {
    barrier_.exchange(call, bytes_of(input), bytes, deadline);
    reduce_in_tree_order(barrier_.payloads(rank * size_in_bytes(output)), bytes_of(output),
                         output.numel(), output.scalar_type(), ReduceOp::sum);
    return bytes - size_in_bytes(output);
  }
  const std::int64_t size = bytes_per_element(input);
  const std::int64_t slice = output.numel();
  // The staging area holds the same part of every slice.
  const std::int64_t staged = staged_slice(shm_.size(), size);
  inputs_.resize(static_cast<std::size_t>(shm_.size()));
  process_chunks(
      {.call = call, .tensor = input, .total = slice, .staged_count = staged}, deadline,
      [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t peer = 0; peer < shm_.size(); ++peer) {
          copy_bytes(staging() + peer * staged * size,
                     bytes_of(input) + (peer * slice + first) * size, count * size);
        }
      },
      [&](std::int64_t first, std::int64_t count) {
        for (std::size_t peer = 0; peer < inputs_.size(); ++peer) {
          const std::int64_t offset = sources_.staged[peer] ? rank * staged : rank * slice + first;
          inputs_[peer] = sources_.data[peer] + offset * size;
        }
        reduce_in_tree_order(inputs_, bytes_of(output) + first * size, count, output.scalar_type(),
                             ReduceOp::sum);
      },
      [](std::int64_t, std::int64_t) {});
  return bytes - size_in_bytes(output);
}

// --- gathers and exchanges -----------------------------------------------------------------------

std::int64_t ShmTransport::execute(const AllGather& gather, const base::Deadline& deadline) {
  const at::Tensor& input = gather.input;
  const PartedTensor& output = gather.output;
  const std::int64_t bytes = size_in_bytes(input);
  const std::int64_t size = shm_.size();
  const CollectiveCall call = call_of(Collective::all_gather, output.tensor,
                                      static_cast<std::int64_t>(base::hash_bytes(std::as_bytes(
                                          std::span(output.begins.data(), output.begins.size())))));
  const std::int64_t largest = largest_part(output);
  if (largest <= kSmallBytes) {
    barrier_.exchange(call, bytes_of(input), bytes, deadline);
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const std::span<std::byte> part = output.part(rank);
      copy_bytes(part.data(), barrier_.slot_of(rank).data, std::ssize(part));
    }
    return bytes * (size - 1);
  }
  const auto within = [](std::int64_t all, std::int64_t first, std::int64_t count) {
    return std::clamp<std::int64_t>(all - first, 0, count);
  };
  process_chunks(
      {.call = call,
       .tensor = input,
       .total = largest,
       .staged_count = staging_bytes(size),
       .is_read = bytes > 0},
      deadline,
      [&](std::int64_t first, std::int64_t count) {
        copy_bytes(staging(), bytes_of(input) + first, within(bytes, first, count));
      },
      [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t step = 1; step <= size; ++step) {
          const std::int64_t rank = (shm_.rank() + step) % size;  // not all from 0
          const std::span<std::byte> part = output.part(rank);
          const std::byte* from =
              rank == shm_.rank() ? bytes_of(input) + first : sources_.at(rank, first, first);
          copy_bytes(part.data() + first, from, within(std::ssize(part), first, count));
        }
      },
      [](std::int64_t, std::int64_t) {});
  return bytes * (size - 1);
}

std::int64_t ShmTransport::execute(const AllToAll& exchange, const base::Deadline& deadline) {
  AllToAllRounds(shm_, barrier_, staging(), exchange).run(deadline);
  return size_in_bytes(exchange.input.tensor) - std::ssize(exchange.input.part(shm_.rank()));
}

std::int64_t ShmTransport::execute(const Broadcast& broadcast, const base::Deadline& deadline) {
  const at::Tensor& tensor = broadcast.tensor;
  const std::int64_t root = broadcast.root;
  const std::int64_t bytes = size_in_bytes(tensor);
  const bool is_root = shm_.rank() == root;
  const CollectiveCall call = call_of(Collective::broadcast, tensor, root);
  if (bytes <= kSmallBytes) {
    barrier_.exchange(call, bytes_of(tensor), is_root ? bytes : 0, deadline);
    if (!is_root) copy_bytes(bytes_of(tensor), barrier_.slot_of(root).data, bytes);
  } else {
    process_chunks(
        {.call = call,
         .tensor = tensor,
         .total = bytes,
         .staged_count = staging_bytes(shm_.size()),
         .is_read = is_root},
        deadline,
        [&](std::int64_t first, std::int64_t count) {
          copy_bytes(staging(), bytes_of(tensor) + first, count);
        },
        [&](std::int64_t first, std::int64_t count) {
          if (!is_root) {
            copy_bytes(bytes_of(tensor) + first, sources_.at(root, first, first), count);
          }
        },
        [](std::int64_t, std::int64_t) {});
  }
  return is_root ? bytes * (shm_.size() - 1) : 0;
}

std::int64_t ShmTransport::execute(const Barrier&, const base::Deadline& deadline) {
  barrier_.exchange({.op = Collective::barrier}, nullptr, 0, deadline);
  return 0;
}

// --- messages ------------------------------------------------------------------------------------

std::int64_t ShmTransport::execute(const Send& message, const base::Deadline& deadline) {
  const auto& [tensor, peer] = message;
  const std::int64_t bytes = size_in_bytes(tensor);
  const bool direct = shm_.peer_memory().reachable(bytes_of(tensor), bytes);
  std::int64_t first = 0;
  do {  // one chunk even for an empty message
    const std::int64_t count = direct ? bytes : std::min(kChunkBytes, bytes - first);
    const std::uint32_t number = mailboxes_.wait_for_free_chunk(peer, deadline);
    std::byte* chunk = bytes_of(tensor) + first;
    if (!direct) {
      std::shared_ptr<std::byte>& staged = peer_staging_[static_cast<std::size_t>(peer)];
      if (!staged) staged = shm_.peer_memory().allocate(kPeerStagingBytes);
      chunk = staged.get() + number % 2 * kChunkBytes;
      copy_bytes(chunk, bytes_of(tensor) + first, count);
    }
    mailboxes_.post(peer, number,
                    {.location = shm_.location_of(chunk), .bytes = count, .message_bytes = bytes});
    first += count;
  } while (first < bytes);
  mailboxes_.wait_until_consumed(peer, deadline);
  return bytes;
}

std::int64_t ShmTransport::execute(const Recv& message, const base::Deadline& deadline) {
  const auto& [tensor, peer] = message;
  const std::int64_t bytes = size_in_bytes(tensor);
  std::int64_t first = 0;
  do {
    const Chunk chunk = mailboxes_.wait_for_chunk(peer, deadline);
    DTRAIN_CHECK(chunk.message_bytes == bytes, "sent {} bytes, expected {}", chunk.message_bytes,
                 bytes);
    copy_bytes(bytes_of(tensor) + first, shm_.at(peer, chunk.location), chunk.bytes);
    mailboxes_.consume(peer);
    first += chunk.bytes;
  } while (first < bytes);
  return 0;
}

std::unique_ptr<Transport> connect_shm(HostGroups& groups, const std::string& key,
                                       const GroupIdentity& identity) {
  GroupMembership membership = groups.join({.key = key,
                                            .name = identity.name,
                                            .rank = identity.rank,
                                            .world_ranks = identity.world_ranks});
  return std::make_unique<ShmTransport>(std::move(membership), groups.peer_memory());
}

at::Tensor allocate_shm(PeerMemory& peer_memory, std::int64_t bytes) {
  if (bytes == 0) return at::zeros({0}, at::kByte);
  const auto memory = peer_memory.allocate(bytes);
  return at::from_blob(
      memory.get(), {bytes}, [memory](void*) {}, at::kByte);
}

// An all_to_all always uses the staging area, for its table.
std::int64_t shm_group_memory(const PlannedGroup& group) {
  GroupLoad load = group.load;
  if (group.exchanges) load.foreign = std::max(load.foreign, staging_bytes(load.size));
  return ShmTransport::bytes(load);
}

}  // namespace dtrain::comm
