#include "dtrain/comm/torchrun/notice.h"

#include <fmt/format.h>

#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/number.h"
#include "dtrain/base/text.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// One key of torchrun's store, which rank 0 removes at the end.
class Notice {
 public:
  Notice(const MeetingPlace& place, std::string key, const base::Deadline& deadline)
      : is_own_(place.rank == 0),
        key_(std::move(key)),
        deadline_(deadline),
        where_(fmt::format("{}:{}", place.master_addr, place.master_port)) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(place.master_port);
    options.timeout = deadline.remaining();
    attempt("cannot reach it",
            [&] { client_ = c10::make_intrusive<c10d::TCPStore>(place.master_addr, options); });
  }

  ~Notice() {
    try {
      if (is_own_) client_->deleteKey(key_);
    } catch (...) {
      // torchrun has ended, and its store with it.
    }
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;

  void set(const std::string& text) {
    attempt("it does not take where rank 0 listens",
            [&] { client_->set(key_, std::vector<std::uint8_t>(text.begin(), text.end())); });
  }

  [[nodiscard]] std::string get(base::WaitingLines* waiting) {
    constexpr std::chrono::milliseconds kPause(20);
    std::vector<std::uint8_t> value;
    attempt("rank 0 has not said there where it listens", [&] {
      while (!client_->check({key_})) {
        if (deadline_.passed()) throw std::runtime_error("timed out");
        if (waiting != nullptr) waiting->show([] { return "rank 0"; });
        std::this_thread::sleep_for(kPause);
      }
      value = client_->get(key_);
    });
    return {value.begin(), value.end()};
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  template <typename Call>
  void attempt(const char* what, Call call) {
    try {
      call();
    } catch (const std::exception& caught) {
      const std::string_view text = caught.what();
      base::fail(deadline_.passed() ? ErrorKind::timeout : ErrorKind::comm,
                 "torchrun's store at {} (MASTER_ADDR, MASTER_PORT): {} within {}: {}", where_,
                 what, base::readable_time(base::Seconds(deadline_.limit()).count()),
                 base::printable(text.substr(0, text.find('\n'))));
    }
  }

  bool is_own_;
  std::string key_;
  base::Deadline deadline_;
  std::string where_;
  c10::intrusive_ptr<c10d::TCPStore> client_;
};

}  // namespace

void meet_through_torchrun(MeetingPlace& place, const std::string& key,
                           const base::Deadline& deadline) {
  const auto notice = std::make_shared<Notice>(place, key, deadline);
  if (place.rank == 0) {
    const bool needs_secret = place.token.empty() && !place.is_one_host;
    const std::string secret = needs_secret ? hexadecimal(net::new_challenge()) : "";
    if (needs_secret) place.token = secret;
    place.master_port = 0;
    place.publish = [notice, secret](std::int64_t port) {
      notice->set(fmt::format("{} {}", port, secret));
    };
    return;
  }
  base::WaitingLines waiting(deadline.limit(), place.waiting_advice);
  const std::string text = notice->get(place.tells_of_waiting ? &waiting : nullptr);
  const auto space = text.find(' ');
  const auto port = base::number_in<std::int64_t>(text.substr(0, space));
  if (space == std::string::npos || !port || *port < 1 || *port > 65'535) {
    base::fail(ErrorKind::comm, "torchrun's store at {} says that rank 0 listens at \"{}\"",
               notice->where(), base::printable(text, 40));
  }
  place.master_port = *port;
  if (place.token.empty()) place.token = text.substr(space + 1);
}

}  // namespace dtrain::comm
