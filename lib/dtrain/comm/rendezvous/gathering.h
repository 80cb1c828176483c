// A meeting of some ranks at the store, where each leaves a note for all. Private to
// comm/rendezvous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::comm {

/// The outcome of a meeting, as every member hears it.
struct Attendance {
  std::vector<std::int64_t> missing = {};  ///< members that did not come in time
  std::vector<std::string> notes = {};     ///< by member; empty while anyone is missing
};

/// Equal notes of neighbouring members are said once: most are those of a host.
[[nodiscard]] std::string packed(const Attendance& attendance);
/// Nothing for a text that packed() did not write.
[[nodiscard]] std::optional<Attendance> unpacked_attendance(std::string_view text);

class Gathering {
 public:
  explicit Gathering(std::vector<std::int64_t> members);

  [[nodiscard]] const std::vector<std::int64_t>& members() const { return members_; }
  /// Keeps the note of a member that comes; false for who is none, or came before.
  [[nodiscard]] bool join(std::int64_t rank, std::string note);
  /// The packed Attendance once all have come, made once since each of them gets it; else nullptr.
  [[nodiscard]] const std::string* notes() const { return is_complete_ ? &packed_ : nullptr; }
  /// Who has come so far.
  [[nodiscard]] Attendance attendance() const;

 private:
  std::vector<std::int64_t> members_;
  std::vector<std::optional<std::string>> notes_;  // by member
  std::size_t come_ = 0;
  bool is_complete_ = false;
  std::string packed_;
};

}  // namespace dtrain::comm
