// Parses and validates dtrun's command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/local/bind.h"

namespace launcher {

/// A selection of the ranks' streams, in torchrun's numbering: 0 none, 1 standard output, 2
/// standard error, 3 both; one number for all ranks, or a map such as 0:3,1:1 (others: 0).
class StreamChoice {
 public:
  StreamChoice() = default;
  explicit StreamChoice(int for_all) : for_all_(for_all) {}
  explicit StreamChoice(std::map<int, int> per_rank) : per_rank_(std::move(per_rank)) {}

  [[nodiscard]] bool any() const { return for_all_ != 0 || !per_rank_.empty(); }
  /// stream: 1 standard output, 2 standard error.
  [[nodiscard]] bool has(int local_rank, int stream) const {
    const auto found = per_rank_.find(local_rank);
    return ((found == per_rank_.end() ? for_all_ : found->second) & stream) != 0;
  }
  /// The highest rank that a map names; -1: none.
  [[nodiscard]] int last_named() const {
    return per_rank_.empty() ? -1 : per_rank_.rbegin()->first;
  }

 private:
  int for_all_ = 0;
  std::map<int, int> per_rank_;
};

struct Options {
  int num_ranks = 1;  // of this node
  int num_nodes = 1;
  int node_rank = 0;
  bool follows_slurm = false;  // node count and rendezvous come from srun's step
  int emulate_nodes = 0;       // launchers to run on this machine; 0: this one alone
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // one node: for the ranks, 0: any; several: of the rendezvous
  std::chrono::duration<double> rdzv_timeout{600.0};
  std::chrono::duration<double> heartbeat_timeout{10.0};
  /// Limit on a rank's silence; 0: none; nullopt: the larger of 10 min and 20 median steps.
  std::optional<std::chrono::duration<double>> hang_timeout;
  std::string log_dir;
  StreamChoice redirects;                               // to files instead of the console
  StreamChoice tee;                                     // to files and the console
  std::int64_t log_size_limit = std::int64_t{1} << 30;  // bytes of a log before it rotates; 0: none
  std::vector<int> local_ranks_filter;                  // ranks shown on the console; empty: all
  std::chrono::duration<double> abort_grace{2.0};
  std::chrono::duration<double> stop_grace{60.0};
  int max_restarts = 0;
  std::chrono::duration<double> restart_backoff{1.0};  // wait before the first restart
  Bind bind = Bind::none;
  std::string rdzv_endpoint;  // node 0's address and port, in torchrun's spelling
  std::string report_file;    // receives the report on the job; empty: none
  std::string help;           // the text of --help, if it was given
  bool version = false;
  std::vector<std::string> program;  // name and arguments
  std::vector<std::string> remarks;  // "note: ..." and "warning: ...", to be printed
};

/// Parses and validates the command line.
///
/// Throws: Error{usage} naming the option, what was found and what to do.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments);

/// The prefix of this dtrun's own lines: "dtrun: ", or "dtrun (node 1): ".
[[nodiscard]] std::string own_prefix(const Options& options);

}  // namespace launcher
