#include "dtrain/comm/shm/shm_world.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/comm/met_world.h"
#include "dtrain/comm/shm/introduction.h"
#include "dtrain/comm/shm/segment.h"
#include "dtrain/comm/shm/shm_transport.h"

namespace dtrain::comm {

namespace {

// The part of a process's address space (128 TiB) that all segments together may take.
constexpr std::int64_t kAddressSpace = std::int64_t{1} << 46;

/// Processes that map each other's segments.
class ProcessNeighbours final : public Neighbours {
 public:
  ProcessNeighbours(std::int64_t own_rank, std::shared_ptr<Segment> segment,
                    std::vector<PeerConnection> peers)
      : own_rank_(own_rank), segment_(std::move(segment)), mappings_(peers.size()) {
    for (std::size_t peer = 0; peer < peers.size(); ++peer) {
      connections_.push_back(std::move(peers[peer].connection));
      if (!is_own(static_cast<std::int64_t>(peer))) {
        mappings_[peer] = std::make_unique<Mapping>(peers[peer].memory);
      }
    }
  }

  [[nodiscard]] Segment& segment() const { return *segment_; }
  [[nodiscard]] std::int64_t num_ranks() const override {
    return static_cast<std::int64_t>(mappings_.size());
  }
  [[nodiscard]] std::uintptr_t base(std::int64_t rank) const override {
    const std::byte* data =
        is_own(rank) ? segment_->data() : mappings_[static_cast<std::size_t>(rank)]->data();
    return reinterpret_cast<std::uintptr_t>(data);
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t rank) const {
    return is_own(rank) ? segment_->bytes() : mappings_[static_cast<std::size_t>(rank)]->bytes();
  }
  [[nodiscard]] bool reachable(const std::byte* data, std::int64_t bytes) const override {
    const auto begin = reinterpret_cast<std::uintptr_t>(segment_->data());
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - begin;  // huge if below
    return offset < static_cast<std::uintptr_t>(segment_->bytes()) &&
           static_cast<std::uintptr_t>(bytes) <=
               static_cast<std::uintptr_t>(segment_->bytes()) - offset;
  }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return segment_->allocate(bytes);
  }
  [[nodiscard]] bool is_gone(std::int64_t rank) const override {
    return !is_own(rank) && has_hung_up(connections_[static_cast<std::size_t>(rank)]);
  }

 private:
  [[nodiscard]] bool is_own(std::int64_t rank) const { return rank == own_rank_; }

  std::int64_t own_rank_;
  std::shared_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Mapping>> mappings_;  // by rank; null for the own
  std::vector<base::Descriptor> connections_;       // by rank
};

std::int64_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  const bool limited = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<std::int64_t>(limit.rlim_cur)
                 : std::numeric_limits<std::int64_t>::max();
}

/// The largest size of each rank's segment with which a process can map all of them.
std::int64_t most_segment_bytes(std::int64_t num_ranks) {
  const std::int64_t space = std::min(kAddressSpace, limit_of(RLIMIT_AS) / 2);  // half for the rest
  return std::min(space / num_ranks, limit_of(RLIMIT_FSIZE));
}

class ShmWorld final : public MetWorld {
 public:
  ShmWorld(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous,
           std::shared_ptr<ProcessNeighbours> neighbours)
      : MetWorld(options, std::move(rendezvous)), neighbours_(std::move(neighbours)) {
    make_control();
  }

  [[nodiscard]] std::string_view backend() const override { return "shm"; }

  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return neighbours_->allocate(bytes);
  }

 private:
  /// A control block lies in the segment of its group's first member.
  struct OwnBlock {
    ControlBlock* block = nullptr;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  std::unique_ptr<Transport> connect(const std::string& key,
                                     const GroupIdentity& identity) override {
    std::string note = "here";
    if (identity.rank == 0) {
      note = std::to_string(make_block(static_cast<std::int64_t>(identity.world_ranks.size())));
    }
    const auto notes = exchange_notes(store(), key, identity.world_ranks, note,
                                      base::Deadline(options().group.timeout));
    auto* block = block_at(notes.front(), identity);
    Seat seat{.block = {neighbours_, block},  // as long as the mapping
              .rank = identity.rank,
              .world_ranks = identity.world_ranks};
    return std::make_unique<ShmTransport>(std::move(seat), neighbours_);
  }

  /// The control block at the offset that the group's first member has reported.
  ControlBlock* block_at(const std::string& note, const GroupIdentity& identity) {
    const std::int64_t owner = identity.world_ranks.front();
    const auto offset = ControlBlock::offset_of(
        note, static_cast<std::int64_t>(identity.world_ranks.size()), neighbours_->bytes(owner));
    if (!offset) {
      base::fail(base::ErrorKind::comm,
                 "rank {} tells that group '{}' meets at offset \"{}\" of its memory of {} bytes, "
                 "which cannot be",
                 owner, identity.name, base::printable(note, 40), neighbours_->bytes(owner));
    }
    return reinterpret_cast<ControlBlock*>(neighbours_->base(owner) +
                                           static_cast<std::uintptr_t>(*offset));
  }

  /// The offset of a new control block.
  std::int64_t make_block(std::int64_t size) {
    Segment& segment = neighbours_->segment();
    std::erase_if(own_blocks_, [&segment](const OwnBlock& own) {
      if (!own.block->is_abandoned()) return false;
      segment.release(own.offset, own.bytes);
      return true;
    });
    OwnBlock own{.bytes = ControlBlock::bytes_for(size)};
    own.offset = segment.reserve(own.bytes);
    own.block = reinterpret_cast<ControlBlock*>(segment.data() + own.offset);
    own.block->size = size;
    own_blocks_.push_back(own);
    return own.offset;
  }

  std::shared_ptr<ProcessNeighbours> neighbours_;
  std::vector<OwnBlock> own_blocks_;  // of groups that may still live; the last ones stay
};

std::string packed(const ShmCard& card) {
  return fmt::format("{}\n{}\n{}", card.host, card.socket_name, card.refusal);
}

ShmCard unpacked(const std::string& text) {
  const auto first = text.find('\n');
  const auto second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos) {
    base::fail(base::ErrorKind::comm, "a rank says of its memory what makes no sense: \"{}\"",
               base::printable(text, 80));
  }
  return {.host = text.substr(0, first),
          .socket_name = text.substr(first + 1, second - first - 1),
          .refusal = base::printable(text.substr(second + 1))};
}

std::vector<ShmCard> exchange_cards(const WorldOptions& options, StoreClient& store,
                                    const ShmCard& own, const base::Deadline& deadline) {
  std::vector<ShmCard> cards;
  for (const auto& note :
       exchange_notes(store, "shared memory", ranks_below(options.size), packed(own), deadline)) {
    cards.push_back(unpacked(note));
  }
  return cards;
}

/// The same, where hosts share a name: only ranks of rank 0's host reach its listening socket.
std::string obstacle_between(const WorldOptions& options, StoreClient& store, const Reach& to_first,
                             const base::Deadline& deadline) {
  const auto notes = exchange_notes(store, "one host", ranks_below(options.size),
                                    to_first.is_here ? "" : "elsewhere", deadline);
  const auto other = std::ranges::find_if(notes, [](const auto& note) { return !note.empty(); });
  if (other == notes.end()) return {};
  return fmt::format(
      "ranks 0 and {} are on different hosts, though both have one boot id (virtual machines of "
      "one snapshot?)",
      other - notes.begin());
}

}  // namespace

std::string obstacle_among(const std::vector<ShmCard>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].refusal.empty()) {
      return fmt::format("rank {} cannot share memory: {}", rank, cards[rank].refusal);
    }
  }
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].host != cards[0].host) {
      return fmt::format("ranks 0 and {} are on different hosts", rank);
    }
  }
  return {};
}

std::shared_ptr<World> create_shm_world(const WorldOptions& options,
                                        const std::shared_ptr<Rendezvous>& rendezvous) {
  const base::Deadline deadline(options.group.timeout);
  ShmCard card;
  std::shared_ptr<Segment> segment;
  ListenSocket listener;
  try {
    card.host = host_of_process();
    segment = std::make_shared<Segment>(most_segment_bytes(options.size), options.count_memory);
    listener = open_listen_socket(options.rank);
    card.socket_name = listener.name;
  } catch (const base::Error& error) {
    card.refusal = error.what();
  }
  const auto cards = exchange_cards(options, *rendezvous->store, card, deadline);
  Reach to_first;
  std::string obstacle = obstacle_among(cards);
  if (obstacle.empty()) {
    to_first = reach(cards.front().socket_name);
    obstacle = obstacle_between(options, *rendezvous->store, to_first, deadline);
  }
  if (obstacle.find(std::strerror(EMFILE)) != std::string::npos) {  // gloo needs more of them
    fail_together(options.rank, base::Error(base::ErrorKind::comm, obstacle));
  }
  if (!obstacle.empty()) {
    if (options.backend == "auto") return nullptr;
    fail_together(options.rank, base::Error(base::ErrorKind::usage,
                                            "--backend shm: " + obstacle + "; use --backend gloo"));
  }
  std::vector<std::string> socket_names;
  for (const ShmCard& each : cards) socket_names.push_back(each.socket_name);
  auto peers = exchange_segments(options.rank, listener, socket_names, segment->file(), deadline,
                                 std::move(to_first.connection));
  return std::make_shared<ShmWorld>(
      options, rendezvous,
      std::make_shared<ProcessNeighbours>(options.rank, std::move(segment), std::move(peers)));
}

}  // namespace dtrain::comm
