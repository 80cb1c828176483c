#include "dtrain/comm/internal/host/host_survey.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

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

/// The largest size of each segment with which a process can map those of all ranks of its host.
std::int64_t most_segment_bytes(std::int64_t num_ranks) {
  const std::int64_t space = std::min(kAddressSpace, limit_of(RLIMIT_AS) / 2);  // half for the rest
  return std::min(space / num_ranks, limit_of(RLIMIT_FSIZE));
}

constexpr const char* kSenseless = "a rank says of its memory what makes no sense: \"{}\"";

ShmCard unpacked(const std::string& text) {
  net::MessageReader reader(text);
  ShmCard card{.host = reader.short_text(), .refusal = base::printable(reader.short_text())};
  if (!reader.is_whole()) base::fail(base::ErrorKind::comm, kSenseless, base::printable(text, 80));
  return card;
}

/// This rank's announcement.
ShmCard own_card(const SurveyOptions& options, HostSurvey& survey) {
  ShmCard card;
  try {
    card.host = host_digest(base::host_of_process());
    // Any of them may be its host's first.
    survey.member.listener = open_listen_socket(options.rank);
  } catch (const base::Error& error) {
    card.refusal = error.what();
  }
  return card;
}

/// Finds the ranks of this host and the name of the first one's socket, which that rank tells here
/// unless it is alone.
void find_first(const SurveyOptions& options, StoreClient& store, HostSurvey& survey,
                const base::Deadline& deadline) {
  HostMember& member = survey.member;
  const auto& hosts = survey.host_of_rank;
  member.rank = options.rank;
  const std::int64_t own = hosts[static_cast<std::size_t>(options.rank)];
  for (std::int64_t rank = 0; rank < options.size; ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] == own) member.ranks.push_back(rank);
  }
  const std::int64_t first = member.ranks.front();
  const bool has_visitors = first == options.rank && member.ranks.size() > 1;
  if (!has_visitors) member.listener = {};
  const auto names =
      exchange_notes(store, "first ranks", options.size, member.listener.name, deadline);
  member.socket_name = names[static_cast<std::size_t>(first)];
}

std::string cannot_share(std::int64_t rank, std::string_view reason) {
  return fmt::format("rank {} cannot share memory: {}", rank, reason);
}

/// Makes the memory that this rank shares. Returns why there is none; empty: there is.
std::string make_segment(const SurveyOptions& options, HostSurvey& survey) {
  try {
    survey.segment = std::make_shared<Segment>(most_segment_bytes(std::ssize(survey.member.ranks)),
                                               options.count_memory);
    return {};
  } catch (const base::Error& error) {
    return cannot_share(options.rank, error.what());
  }
}

/// Machines may share a name: only ranks of one host reach its first rank's listening socket.
std::string reach_first(std::int64_t rank, HostSurvey& survey) {
  const std::int64_t first = survey.member.ranks.front();
  if (rank == first) return {};
  Reach reached = reach(survey.member.socket_name);
  survey.member.to_first = std::move(reached.connection);
  if (reached.is_here) return {};
  return fmt::format(
      "ranks {} and {} are on different hosts, though both have one boot id (virtual machines of "
      "one snapshot?)",
      first, rank);
}

/// The first of what keeps the ranks from sharing memory; empty: nothing does.
std::string first_obstacle(const SurveyOptions& options, StoreClient& store, const std::string& own,
                           const base::Deadline& deadline) {
  for (const auto& note : exchange_notes(store, "one host", options.size, own, deadline)) {
    if (!note.empty()) return base::printable(note);
  }
  return {};
}

}  // namespace

std::string host_digest(const std::string& host) {
  constexpr std::size_t kBytes = 8;
  return net::hmac_sha256("host", host).substr(0, kBytes);
}

// Equal for all ranks of a host, so that the store says it once.
std::string packed(const ShmCard& card) {
  return net::MessageWriter().short_text(card.host).short_text(card.refusal).bytes();
}

std::string refusal_among(const std::vector<ShmCard>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].refusal.empty()) {
      return cannot_share(static_cast<std::int64_t>(rank), cards[rank].refusal);
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

HostSurvey survey_hosts(const SurveyOptions& options, StoreClient& store,
                        const base::Deadline& deadline) {
  HostSurvey survey;
  const ShmCard card = own_card(options, survey);
  std::vector<ShmCard> cards;
  for (const auto& note :
       exchange_notes(store, "shared memory", options.size, packed(card), deadline)) {
    cards.push_back(unpacked(note));
  }
  survey.obstacle = refusal_among(cards);
  if (!survey.obstacle.empty()) return survey;
  survey.host_of_rank = hosts_of(cards);
  if (options.size > 1 && survey.num_hosts() == options.size) return survey;
  find_first(options, store, survey, deadline);
  std::string own = reach_first(options.rank, survey);
  if (own.empty()) own = make_segment(options, survey);
  survey.obstacle = first_obstacle(options, store, own, deadline);
  return survey;
}

std::shared_ptr<ProcessNeighbours> share_memory(HostSurvey survey, const base::Deadline& deadline) {
  return std::make_shared<ProcessNeighbours>(std::move(survey.member), std::move(survey.segment),
                                             deadline);
}

}  // namespace dtrain::comm
