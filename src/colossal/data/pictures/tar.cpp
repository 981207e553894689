#include "colossal/data/pictures/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::data {
namespace {

constexpr int64_t kTarBlock = 512;

/// The state of libarchive's callbacks.
struct TarInput {
  const InputFile& file;
  int64_t position = 0;
  std::vector<char> piece{};
  std::string error{};  // of the file
};

la_ssize_t read_tar_piece(archive* reader, void* state, const void** out) {
  constexpr int64_t kTarPiece = 4096;
  auto* input = static_cast<TarInput*>(state);
  try {
    input->piece.resize(std::min(kTarPiece, input->file.size() - input->position));
    input->file.read(input->position, static_cast<int64_t>(input->piece.size()), input->piece.data());
  } catch (const Error& error) {  // must not pass through C
    input->error = error.message();
    archive_set_error(reader, EIO, "%s", error.message().c_str());
    return ARCHIVE_FATAL;
  }
  input->position += static_cast<int64_t>(input->piece.size());
  *out = input->piece.data();
  return static_cast<la_ssize_t>(input->piece.size());
}

la_int64_t skip_tar_bytes(archive*, void* state, la_int64_t count) {
  auto* input = static_cast<TarInput*>(state);
  const int64_t skipped = std::min<int64_t>(count, input->file.size() - input->position);
  input->position += skipped;
  return skipped;
}

void refuse_compressed(const InputFile& file) {
  const std::string start = file.start(6);
  const bool is_gzip = start.starts_with("\x1f\x8b"), is_zstd = start.starts_with("\x28\xb5\x2f\xfd");
  const bool is_bzip2 = start.starts_with("BZh"), is_xz = start.starts_with("\xfd\x37zXZ");
  require(!is_gzip && !is_zstd && !is_bzip2 && !is_xz, "data", file.path(),
          " is a compressed tar, whose pictures cannot be read one by one; unpack it with ",
          is_gzip   ? "gzip"
          : is_zstd ? "zstd"
          : is_xz   ? "xz"
                    : "bzip2",
          " -d");
}

/// Returns the name of a member. libarchive has it as bytes or, if it is not ASCII and was stored as Unicode, as UTF-8.
std::string name_of_member(archive_entry* entry) {
  const char* name = archive_entry_pathname(entry);
  if (name == nullptr) name = archive_entry_pathname_utf8(entry);
  return name == nullptr ? "" : name;
}

/// Checks that the file ends with a block of zeros, without which members may be missing.
void check_end(const InputFile& file) {
  std::string last(kTarBlock, 'x');
  if (file.size() >= kTarBlock && file.size() % kTarBlock == 0)
    file.read(file.size() - kTarBlock, kTarBlock, last.data());
  require(last.find_first_not_of('\0') == std::string::npos, "data", file.path(),
          " is cut short: it has no end mark; fetch it again");
}

}  // namespace

bool reads_tars() { return true; }

void list_tar(const InputFile& file, const std::function<void(const TarMember&)>& take) {
  refuse_compressed(file);
  TarInput input{file};
  const std::unique_ptr<archive, int (*)(archive*)> reader(archive_read_new(), archive_read_free);
  require(reader != nullptr, "data", "no memory to read ", file.path());
  archive_read_support_format_tar(reader.get());
  archive_read_set_format_option(reader.get(), "tar", "read_concatenated_archives", "1");
  archive_read_set_read_callback(reader.get(), read_tar_piece);
  archive_read_set_skip_callback(reader.get(), skip_tar_bytes);
  archive_read_set_callback_data(reader.get(), &input);
  int code = archive_read_open1(reader.get());
  for (archive_entry* entry = nullptr; code == ARCHIVE_OK || code == ARCHIVE_WARN;) {
    code = archive_read_next_header(reader.get(), &entry);
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) break;
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    const TarMember member{name_of_member(entry), archive_filter_bytes(reader.get(), 0), archive_entry_size(entry)};
    require(archive_entry_sparse_count(entry) == 0, "data", file.path(), ": the member ", printable(member.name),
            " is sparse; pack it anew without holes");
    require(member.size >= 0 && member.size <= file.size() - member.offset, "data", file.path(),
            " is cut short within the member ", printable(member.name), "; fetch it again");
    take(member);
  }
  if (!input.error.empty()) throw Error("file", input.error);
  const char* why = archive_error_string(reader.get());
  require(code == ARCHIVE_EOF, "data", file.path(), " is no tar file or is damaged: ", why == nullptr ? "" : why,
          "; fetch it again");
  check_end(file);
}

}  // namespace colossal::data
