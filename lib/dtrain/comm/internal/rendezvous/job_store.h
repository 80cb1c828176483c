// The state of the store that rank 0 serves: who has come, which ranks meet, why the job cannot
// start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/rendezvous/wire.h"

namespace dtrain::comm {

/// Why the job cannot start; every rank then fails with it.
struct Refusal {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
};

/// The key under which all ranks of the job meet; part of a message.
inline constexpr const char* kJobKey = "the job";

/// A meeting of some ranks, where each leaves a note for all.
class Gathering {
 public:
  explicit Gathering(std::vector<std::int64_t> members);

  [[nodiscard]] const std::vector<std::int64_t>& members() const { return members_; }
  /// Keeps the note of a member that comes; false for who is none, or came before.
  [[nodiscard]] bool join(std::int64_t rank, std::string note);
  /// The packed Attendance once all have come, made once since each of them gets it; else nullptr.
  [[nodiscard]] const std::string* notes() const { return packed_.empty() ? nullptr : &packed_; }
  /// Who has come so far.
  [[nodiscard]] Attendance attendance() const;

 private:
  std::vector<std::int64_t> members_;
  std::vector<std::optional<std::string>> notes_;  // by member
  std::size_t come_ = 0;
  std::string packed_;  // empty until all have come
};

class JobStore {
 public:
  explicit JobStore(std::int64_t size);

  /// Admits a process that claims to be rank `rank` of `size`; refuses the job if that contradicts
  /// what the others claim.
  void admit(std::uint64_t rank, std::uint64_t size);
  [[nodiscard]] bool everyone_came() const { return missing_.empty(); }

  /// "rank 1 of 2", "ranks 1, 3 of 8": the ranks that have not connected; of more than 10 the first
  /// ones and the number of the others. Costs no more than the ranks that it names.
  [[nodiscard]] std::string describe_missing() const;

  /// Rank `rank` comes to the meeting of these members; refuses the job if members contradict each
  /// other.
  void join(const std::string& key, const std::vector<std::int64_t>& members, std::int64_t rank,
            std::string note);
  /// The notes of that meeting's members as a packed Attendance; nullptr until all have come.
  [[nodiscard]] const std::string* notes(const std::string& key) const;
  /// The members that have not come to a meeting, likewise.
  [[nodiscard]] std::string missing(const std::string& key) const;

  /// Grows whenever something that a rank may wait for has come.
  [[nodiscard]] std::uint64_t news() const { return news_; }

  /// The first refusal counts.
  void refuse(base::ErrorKind kind, std::string message);
  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  std::int64_t size_;
  std::set<std::uint64_t> missing_;  // ranks that have not connected
  std::map<std::string, Gathering> gatherings_;
  std::size_t gathered_bytes_ = 0;  // members and notes of all gatherings
  std::optional<Refusal> refusal_;
  std::uint64_t news_ = 0;
};

}  // namespace dtrain::comm
