// Simulates the files and folders that a machine may keep after a power loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"

namespace dtrain::testing {

/// How much unsynced data survives a power loss. A folder has its entries as of some moment since
/// its last sync; a file has its bytes up to its last sync and possibly more.
enum class Survival {
  nothing,      ///< names and bytes as of the last sync
  names,        ///< all names; files hold what was synced
  names_half,   ///< all names; files also hold half of the unsynced bytes
  names_zeros,  ///< all names; files have their full length, padded with zeros
  by_chance     ///< chosen at random for each folder and file
};

struct PowerLoss {
  std::size_t after = 0;  ///< number of operations before the loss
  Survival survival = Survival::nothing;
  std::uint64_t seed = 0;                          ///< for by_chance
  std::optional<std::size_t> ignored_operation{};  ///< a sync to ignore
};

/// Remaining files and folders below the root, by path: the bytes of a file, or nullopt for a
/// folder.
using Remains = std::map<std::string, std::optional<std::string>>;

/// Writes the remains to a new folder.
void write_remains(const Remains& remains, const std::string& to);

/// Operates on real files below one folder and records all operations. From these it reconstructs
/// the files that a power loss at any moment would have left. Files that exist at construction
/// survive.
///
/// Source:  leveldb's FaultInjectionTestEnv. Differs: supports folders and several kinds of
///          survival.
/// Threads: any number of callers.
class ForgetfulFileSystem final : public base::FileSystem {
 public:
  struct Operation {
    enum class Kind { create, write, sync, make_folder, sync_folder, rename, remove };
    Kind kind;
    std::string path;
    std::string more;  ///< the bytes written, or the new path
  };

  explicit ForgetfulFileSystem(std::string root);

  [[nodiscard]] std::unique_ptr<base::OutputFile> create_file(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;

  [[nodiscard]] const std::vector<Operation>& operations() const { return operations_; }
  [[nodiscard]] Remains remains(const PowerLoss& loss) const;

 private:
  friend class RecordedFile;

  void record(Operation operation);

  std::string root_;
  std::map<std::string, std::string> files_;  // files at construction, by path
  std::vector<std::string> folders_;          // folders at construction, parents first
  base::Disk disk_{base::ErrorKind::checkpoint};
  std::mutex mutex_;
  std::vector<Operation> operations_;
};

}  // namespace dtrain::testing
