// The members of tar files, with their places, so that each can be read alone.
//
//   const auto file = InputFile::open("train-000.tar");
//   data::list_tar(*file, [](const data::TarMember& member) { std::cout << member.name << " " << member.size << "\n";
//   });
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "colossal/base/input_file.h"

namespace colossal::data {

/// A regular file in a tar file.
struct TarMember {
  std::string name{};            ///< its path as stored, of any bytes
  int64_t offset = 0, size = 0;  ///< its bytes in the tar file
};

/// Returns true if this build reads tar files, because libarchive was there when it was made.
bool reads_tars();

/// Calls `take` with each regular file of an uncompressed tar (ustar, pax, GNU), in the order of the file; of tars that
/// were joined, with those of all. Other members (folders, links) are passed over.
///
/// Errors ("data"), with the file's name: it is no tar, is damaged or is compressed; a member is sparse; the build has
/// no libarchive. The file is cut short: it ends within a member or without the zero block that ends a tar. `take` has
/// then been called with the members before the damage. Errors ("file"): the file cannot be read.
/// Cost: reads the headers and passes over the content. Memory: 4 KiB and a header.
void list_tar(const InputFile& file, const std::function<void(const TarMember&)>& take);

}  // namespace colossal::data
