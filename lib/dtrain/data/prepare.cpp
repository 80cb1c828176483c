#include "dtrain/data/prepare.h"

#include <algorithm>
#include <filesystem>

#include "dtrain/base/atomic_file.h"
#include "dtrain/base/checksum.h"
#include "dtrain/data/text.h"
#include "dtrain/data/token_file.h"

namespace dtrain::data {

namespace {

namespace fs = std::filesystem;
using base::ErrorKind;

constexpr base::FileRole kTextRole{ErrorKind::data, "data file",
                                   "give a plain text, or a folder of them"};

/// The regular files below a folder that are not empty, sorted by path.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_symlink() || !entry.is_regular_file() || entry.file_size() == 0) continue;
      files.push_back(entry.path().string());
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::data, "folder '{}' cannot be read: {}; check its permissions", folder,
         error.code().message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> list_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code ignored;  // what is wrong with a file is said when it is opened
    if (fs::is_directory(input, ignored)) {
      const auto below = files_below(input);
      files.insert(files.end(), below.begin(), below.end());
    } else {
      files.push_back(input);
    }
  }
  return files;
}

void check_output(const PrepareOptions& options, const std::vector<std::string>& files) {
  std::error_code error;
  if (!fs::exists(options.output, error)) return;
  if (fs::is_directory(options.output, error)) {
    fail(ErrorKind::usage, "output '{}' is a directory; name the token file", options.output);
  }
  if (!options.overwrite) {
    fail(ErrorKind::usage, "output '{}' exists; name another file or give --overwrite",
         options.output);
  }
  for (const std::string& file : files) {
    if (fs::equivalent(file, options.output, error)) {
      fail(ErrorKind::usage, "output '{}' is among the inputs; write it elsewhere", options.output);
    }
  }
}

/// The state of a file when it was examined, before anything is written.
struct Source {
  std::string path;
  std::size_t num_bytes;
};

struct Examined {
  std::vector<Source> sources;
  std::uint64_t checksum = 0;  // of all bytes
};

Examined examine(const std::vector<std::string>& files) {
  Examined examined;
  base::Checksum checksum;
  for (const std::string& file : files) {
    const auto text = base::MappedFile::open(file, kTextRole);
    check_is_text(text);
    checksum.add(text.bytes());
    examined.sources.push_back({file, text.bytes().size()});
  }
  examined.checksum = checksum.value();
  return examined;
}

}  // namespace

PrepareReport prepare(const PrepareOptions& options) {
  const std::vector<std::string> files = list_files(options.inputs);
  if (files.empty()) {
    if (options.inputs.empty()) {
      fail(ErrorKind::usage, "no text is given; name files or folders with files");
    }
    fail(ErrorKind::usage, "no text is found in '{}'; name files or folders with files",
         fmt::join(options.inputs, "', '"));
  }
  check_output(options, files);
  const Examined examined = examine(files);
  PrepareReport report{.num_files = static_cast<std::int64_t>(examined.sources.size())};
  for (const Source& source : examined.sources) {
    report.num_tokens += static_cast<std::int64_t>(source.num_bytes);
  }
  base::AtomicFile output(options.output, ErrorKind::data);
  output.write(
      encode_token_header({.num_tokens = report.num_tokens, .checksum = examined.checksum}));
  base::Checksum written;
  for (const Source& source : examined.sources) {
    const auto text = base::MappedFile::open(source.path, kTextRole);
    if (text.bytes().size() != source.num_bytes) {
      fail(ErrorKind::data,
           "data file '{}' changed from {} to {} bytes while being read; try again", source.path,
           source.num_bytes, text.bytes().size());
    }
    output.write(text.bytes());
    written.add(text.bytes());
  }
  if (written.value() != examined.checksum) {
    fail(ErrorKind::data, "a data file changed while being read ('{}' or another); try again",
         examined.sources.front().path);
  }
  output.commit();
  return report;
}

}  // namespace dtrain::data
