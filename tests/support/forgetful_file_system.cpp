#include "support/forgetful_file_system.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::testing {

using Kind = ForgetfulFileSystem::Operation::Kind;

/// Records the operations on a file.
class RecordedFile final : public base::OutputFile {
 public:
  RecordedFile(ForgetfulFileSystem& files, std::string path)
      : files_(files), path_(std::move(path)), file_(files.disk_.create_file(path_)) {
    files_.record({.kind = Kind::create, .path = path_, .more = {}});
  }

  void write(std::span<const std::byte> bytes) override {
    file_->write(bytes);
    files_.record({.kind = Kind::write,
                   .path = path_,
                   .more = {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
  }
  void sync() override {
    file_->sync();
    files_.record({.kind = Kind::sync, .path = path_, .more = {}});
  }
  void close() override { file_->close(); }

 private:
  ForgetfulFileSystem& files_;
  std::string path_;
  std::unique_ptr<base::OutputFile> file_;
};

namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Files and folders in memory, and which of their content is durable.
class Memory {
 public:
  explicit Memory(std::string root) : root_(std::move(root)) { nodes_.emplace_back(); }

  void apply(const ForgetfulFileSystem::Operation& operation, bool is_ignored);
  void make_all_durable();
  [[nodiscard]] Remains remains(const PowerLoss& loss);

 private:
  using Names = std::map<std::string, std::size_t>;  // of nodes
  struct Node {
    bool is_folder = true;
    std::vector<Names> names{Names()};  // of a folder: versions since the last sync, oldest first
    std::string bytes{};
    std::size_t num_synced = 0;  // bytes
  };

  [[nodiscard]] Node& at(const std::string& path);
  [[nodiscard]] Node& parent_of(const std::string& path) { return at(base::parent_folder(path)); }
  void add(const std::string& path, bool is_folder);
  std::size_t remove(const std::string& path);
  void add_remains(const Node& folder, const PowerLoss& loss, const std::string& prefix,
                   Remains& remains);
  [[nodiscard]] std::string surviving_bytes(const Node& file, const PowerLoss& loss);

  std::string root_;
  std::vector<Node> nodes_;
  std::mt19937_64 random_;
};

std::string last_name(const std::string& path) { return fs::path(path).filename().string(); }

Memory::Node& Memory::at(const std::string& path) {
  if (path == root_) return nodes_[0];
  return nodes_[parent_of(path).names.back().at(last_name(path))];
}

void Memory::add(const std::string& path, bool is_folder) {
  nodes_.push_back({.is_folder = is_folder});
  Node& parent = parent_of(path);
  Names names = parent.names.back();
  names[last_name(path)] = nodes_.size() - 1;
  parent.names.push_back(std::move(names));
}

std::size_t Memory::remove(const std::string& path) {
  Node& parent = parent_of(path);
  Names names = parent.names.back();
  const std::size_t node = names.at(last_name(path));
  names.erase(last_name(path));
  parent.names.push_back(std::move(names));
  return node;
}

void Memory::apply(const ForgetfulFileSystem::Operation& operation, bool is_ignored) {
  const std::string& path = operation.path;
  switch (operation.kind) {
    case Kind::create:
      return add(path, false);
    case Kind::make_folder:
      return add(path, true);
    case Kind::write:
      at(path).bytes += operation.more;
      return;
    case Kind::remove:
      std::ignore = remove(path);
      return;
    case Kind::sync:
      if (!is_ignored) at(path).num_synced = at(path).bytes.size();
      return;
    case Kind::sync_folder: {
      auto& names = at(path).names;
      if (!is_ignored) names.erase(names.begin(), names.end() - 1);
      return;
    }
    case Kind::rename: {
      DTRAIN_CHECK(base::parent_folder(path) == base::parent_folder(operation.more),
                   "moves between folders are not supported");
      Node& parent = parent_of(path);
      Names names = parent.names.back();
      auto moved = names.extract(last_name(path));
      names[last_name(operation.more)] = moved.mapped();
      parent.names.push_back(std::move(names));
    }
  }
}

void Memory::make_all_durable() {
  for (Node& node : nodes_) {
    node.names.erase(node.names.begin(), node.names.end() - 1);
    node.num_synced = node.bytes.size();
  }
}

Remains Memory::remains(const PowerLoss& loss) {
  random_.seed(loss.seed);
  Remains result;
  add_remains(nodes_[0], loss, "", result);
  return result;
}

void Memory::add_remains(const Node& folder, const PowerLoss& loss, const std::string& prefix,
                         Remains& remains) {
  std::size_t version = loss.survival == Survival::nothing ? 0 : folder.names.size() - 1;
  if (loss.survival == Survival::by_chance) version = random_() % folder.names.size();
  for (const auto& [name, child] : folder.names[version]) {
    const Node& node = nodes_[child];
    if (node.is_folder) {
      remains.emplace(prefix + name, std::nullopt);
      add_remains(node, loss, prefix + name + "/", remains);
    } else {
      remains.emplace(prefix + name, surviving_bytes(node, loss));
    }
  }
}

std::string Memory::surviving_bytes(const Node& file, const PowerLoss& loss) {
  const std::size_t num_lost = file.bytes.size() - file.num_synced;
  const std::string synced = file.bytes.substr(0, file.num_synced);
  switch (loss.survival) {
    case Survival::nothing:
    case Survival::names:
      return synced;
    case Survival::names_half:
      return file.bytes.substr(0, file.num_synced + num_lost / 2);
    case Survival::names_zeros:
      return synced + std::string(num_lost, '\0');
    case Survival::by_chance:
      break;
  }
  if (random_() % 2 == 0) return synced + std::string(num_lost, '\0');
  return file.bytes.substr(0, file.num_synced + random_() % (num_lost + 1));
}

}  // namespace

void write_remains(const Remains& remains, const std::string& to) {
  fs::create_directory(to);
  for (const auto& [name, bytes] : remains) {  // parents first
    if (bytes) {
      std::ofstream(to + "/" + name, std::ios::binary).write(bytes->data(), std::ssize(*bytes));
    } else {
      fs::create_directory(to + "/" + name);
    }
  }
}

ForgetfulFileSystem::ForgetfulFileSystem(std::string root) : root_(std::move(root)) {
  // The iterator lists parents first.
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.is_directory()) {
      folders_.push_back(entry.path().string());
    } else {
      files_.emplace(entry.path().string(), content_of(entry.path()));
    }
  }
}

std::unique_ptr<base::OutputFile> ForgetfulFileSystem::create_file(const std::string& path) {
  return std::make_unique<RecordedFile>(*this, path);
}

void ForgetfulFileSystem::make_folder(const std::string& path) {
  const bool is_new = !fs::exists(path);
  disk_.make_folder(path);
  if (is_new) record({.kind = Kind::make_folder, .path = path, .more = {}});
}

void ForgetfulFileSystem::sync_folder(const std::string& path) {
  disk_.sync_folder(path);
  record({.kind = Kind::sync_folder, .path = path, .more = {}});
}

void ForgetfulFileSystem::rename(const std::string& from, const std::string& to) {
  disk_.rename(from, to);
  record({.kind = Kind::rename, .path = from, .more = to});
}

void ForgetfulFileSystem::remove_file(const std::string& path) {
  const bool path_exists = fs::exists(path);
  disk_.remove_file(path);
  if (path_exists) record({.kind = Kind::remove, .path = path, .more = {}});
}

void ForgetfulFileSystem::remove_folder(const std::string& path) {
  const bool path_exists = fs::exists(path);
  disk_.remove_folder(path);
  if (path_exists) record({.kind = Kind::remove, .path = path, .more = {}});
}

void ForgetfulFileSystem::record(Operation operation) {
  const std::scoped_lock lock(mutex_);
  operations_.push_back(std::move(operation));
}

Remains ForgetfulFileSystem::remains(const PowerLoss& loss) const {
  Memory memory(root_);
  for (const std::string& path : folders_) {
    memory.apply({.kind = Kind::make_folder, .path = path, .more = {}}, false);
  }
  for (const auto& [path, bytes] : files_) {
    memory.apply({.kind = Kind::create, .path = path, .more = {}}, false);
    memory.apply({.kind = Kind::write, .path = path, .more = bytes}, false);
  }
  memory.make_all_durable();
  for (std::size_t i = 0; i < loss.after; ++i) {
    memory.apply(operations_[i], loss.ignored_operation == i);
  }
  return memory.remains(loss);
}

}  // namespace dtrain::testing
