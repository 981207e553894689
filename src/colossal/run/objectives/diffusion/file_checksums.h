// Checksums of pictures and videos that a folder remembers, so that not every start of a run reads each file whole.
//
//   FileChecksums checksums("runs/sd/latents/checksums.jsonl");
//   const std::string content = checksums.of(*pictures, 0);   // reads the file, unless its stamp is known
//   checksums.store();
//
// A file is known again by its path, size, times of change and number (data::StampedFile). Another content changes
// them, and the file is read again.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "colossal/data/pictures/captioned.h"

namespace colossal::run {

class FileChecksums {
 public:
  /// Reads what store() wrote. Lines that are damaged, and a file that cannot be read, are as if they were not there.
  explicit FileChecksums(std::string path);

  /// Returns the checksum of the bytes of a picture or video. Errors: those of CaptionedPictures::open(). Cost: reads
  /// them, in pieces, if their stamp is another one or not known.
  std::string of(const data::CaptionedPictures& files, int64_t index);
  /// Writes what of() found since, as an AtomicFile; the folder is made. Has no effect if nothing is new or the file
  /// cannot be written. Several ranks may write at the same time: the file of the last one stays.
  void store();

 private:
  struct Known {
    std::string stamp, checksum;
  };
  std::string path_;
  std::map<std::string, Known> known_;  // by the path of the file
  bool is_new_ = false;                 // something is not stored
};

}  // namespace colossal::run
