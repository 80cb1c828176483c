#include "dtrain/comm/shm/host_survey.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"

namespace dtrain::comm {

namespace {

// The part of a process's address space (128 TiB) that all segments together may take.
constexpr std::int64_t kAddressSpace = std::int64_t{1} << 46;

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

/// The first rank on each rank's host.
std::int64_t first_on_host(const std::vector<std::int64_t>& hosts, std::int64_t rank) {
  const auto host = hosts[static_cast<std::size_t>(rank)];
  return std::ranges::find(hosts, host) - hosts.begin();
}

/// Machines may share a name: only ranks of one host reach its first rank's listening socket.
std::string twins_among(const WorldOptions& options, StoreClient& store, const HostSurvey& survey,
                        bool is_here, const base::Deadline& deadline) {
  const auto notes = exchange_notes(store, "one host", ranks_below(options.size),
                                    is_here ? "" : "elsewhere", deadline);
  const auto other = std::ranges::find_if(notes, [](const auto& note) { return !note.empty(); });
  if (other == notes.end()) return {};
  const std::int64_t rank = other - notes.begin();
  return fmt::format(
      "ranks {} and {} are on different hosts, though both have one boot id (virtual machines of "
      "one snapshot?)",
      first_on_host(survey.host_of_rank, rank), rank);
}

}  // namespace

std::string refusal_among(const std::vector<ShmCard>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].refusal.empty()) {
      return fmt::format("rank {} cannot share memory: {}", rank, cards[rank].refusal);
    }
  }
  return {};
}

std::vector<std::int64_t> hosts_of(const std::vector<ShmCard>& cards) {
  std::vector<std::int64_t> hosts;
  std::vector<std::string> names;
  for (const ShmCard& card : cards) {
    const auto known = std::ranges::find(names, card.host);
    hosts.push_back(known - names.begin());
    if (known == names.end()) names.push_back(card.host);
  }
  return hosts;
}

std::int64_t HostSurvey::num_hosts() const {
  return host_of_rank.empty() ? 0 : *std::ranges::max_element(host_of_rank) + 1;
}

HostSurvey survey_hosts(const WorldOptions& options, StoreClient& store,
                        const base::Deadline& deadline) {
  HostSurvey survey;
  ShmCard card;
  try {
    card.host = host_of_process();
    survey.segment =
        std::make_shared<Segment>(most_segment_bytes(options.size), options.count_memory);
    survey.listener = open_listen_socket(options.rank);
    card.socket_name = survey.listener.name;
  } catch (const base::Error& error) {
    card.refusal = error.what();
  }
  const auto cards = exchange_cards(options, store, card, deadline);
  survey.obstacle = refusal_among(cards);
  if (!survey.obstacle.empty()) return survey;
  survey.host_of_rank = hosts_of(cards);
  for (const ShmCard& each : cards) {
    survey.socket_names.push_back(each.host == card.host ? each.socket_name : "");
  }
  const auto first = static_cast<std::size_t>(first_on_host(survey.host_of_rank, options.rank));
  Reach to_first = reach(survey.socket_names[first]);
  survey.obstacle = twins_among(options, store, survey, to_first.is_here, deadline);
  survey.to_first = std::move(to_first.connection);
  return survey;
}

std::shared_ptr<ProcessNeighbours> share_memory(std::int64_t rank, HostSurvey survey,
                                                const base::Deadline& deadline) {
  auto peers = exchange_segments(rank, survey.listener, survey.socket_names, survey.segment->file(),
                                 deadline, std::move(survey.to_first));
  return std::make_shared<ProcessNeighbours>(rank, std::move(survey.segment), std::move(peers));
}

}  // namespace dtrain::comm
