// The state of the store that rank 0 serves: who has come, what they said, why the job cannot
// start. Private to comm/rendezvous.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous/store_values.h"

namespace dtrain::comm {

/// Why the job cannot start; every rank then fails with it.
struct Refusal {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
};

/// The kind that the number of a refusal means; comm for one that the other side made up, which
/// must not become an exit status.
[[nodiscard]] base::ErrorKind kind_of_refusal(std::uint64_t number);

/// The key under which all ranks of the job meet; part of a message.
inline constexpr const char* kJobKey = "the job";

/// The key under which a rank's note for a meeting is found once it has come.
[[nodiscard]] std::string member_key(const std::string& key, std::int64_t rank);

class JobStore {
 public:
  explicit JobStore(std::int64_t size) : size_(size) {}

  /// Admits a process that claims to be rank `rank` of `size`; refuses the job if that contradicts
  /// what the others claim.
  void admit(std::uint64_t rank, std::uint64_t size);
  [[nodiscard]] bool everyone_came() const {
    return arrived_.size() == static_cast<std::size_t>(size_);
  }

  void set(const std::string& key, std::string value);
  [[nodiscard]] const std::string* find(const std::string& key) const { return values_.find(key); }

  /// The first refusal counts.
  void refuse(base::ErrorKind kind, std::string message);
  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  std::int64_t size_;
  std::set<std::uint64_t> arrived_;
  StoreValues values_;
  std::optional<Refusal> refusal_;
};

}  // namespace dtrain::comm
