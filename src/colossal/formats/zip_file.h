// Members of a zip file, which are read when they are asked for. The reader is Debian's libzip.
//
//   const ZipFile file("params_model_1.npz");
//   for (const ZipMember& member : file.members()) use(member.name, file.content(member, 1 << 20));
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace colossal::formats {

/// A member of a zip file.
struct ZipMember {
  std::string name;       ///< as it is stored, without a change of its encoding
  uint64_t size = 0;      ///< bytes of its content
  uint64_t index = 0;     ///< place in the directory of the file
  bool is_stored = true;  ///< content is not compressed, so that a part of it is read without what is before it
};

/// Returns true if this build reads zip files, because libzip was there when it was made.
bool reads_zips();

/// Returns true if `path` is a regular file that begins as a zip file does. A file that cannot be read gives false.
bool is_zip(const std::string& path);

/// An open zip file.
///
/// Errors: the constructor throws Error("file", ...) if the file cannot be read, and Error("zip", path and rule) if it
///         is no zip file or this build has no libzip. Names must be distinct. Each member must be stored or deflated,
///         without a password, with a size that its compressed bytes can have.
/// Thread safety: const members may be called from several threads, which wait for one another.
class ZipFile {
 public:
  explicit ZipFile(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<ZipMember>& members() const { return members_; }
  /// Returns the member with this name; null = there is none. Cost: looks at every name.
  const ZipMember* find(const std::string& name) const;
  /// Copies bytes [begin, begin + count) of the content of a member to `out`.
  /// Errors ("zip"): the range is not within the member; damaged bytes. A wrong checksum is found if all bytes are
  ///        read.
  /// Cost: also decompresses what is before `begin`.
  void read(const ZipMember& member, uint64_t begin, uint64_t count, void* out) const;
  /// Returns the content of a member. Errors ("zip"): it has more than `max_bytes`; as read().
  std::string content(const ZipMember& member, uint64_t max_bytes) const;

 private:
  struct State;
  std::string path_;
  std::unique_ptr<State> state_;
  std::vector<ZipMember> members_;
};

}  // namespace colossal::formats
