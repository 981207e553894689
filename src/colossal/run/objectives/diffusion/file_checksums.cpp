#include "colossal/run/objectives/diffusion/file_checksums.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::run {
namespace {

using nlohmann::json;

std::string checksum_of_file(const data::CaptionedPictures& files, int64_t index) {
  constexpr int64_t kPiece = int64_t{1} << 20;  // because videos may be large
  const data::PictureBytes bytes = files.open(index);
  std::string piece;
  Checksum sum;
  for (int64_t begin = 0; begin < bytes.size; begin += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, bytes.size - begin)));
    bytes.read(begin, static_cast<int64_t>(piece.size()), piece.data());
    sum.update(piece.data(), piece.size());
  }
  return sum.hex();
}

}  // namespace

FileChecksums::FileChecksums(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    try {
      const json row = parse_json(line, path_, "data");
      const bool is_row = row.is_array() && row.size() == 3 &&
                          std::all_of(row.begin(), row.end(), [](const json& one) { return one.is_string(); });
      if (is_row) known_[row[0]] = {row[1], row[2]};
    } catch (const Error&) {
      continue;  // a damaged line; its file is read again
    }
  }
}

std::string FileChecksums::of(const data::CaptionedPictures& files, int64_t index) {
  const data::StampedFile file = files.stamped_file(index);
  if (file.path.empty() || file.stamp.empty()) return checksum_of_file(files, index);
  const auto found = known_.find(file.path);
  if (found != known_.end() && found->second.stamp == file.stamp) return found->second.checksum;
  const std::string checksum = checksum_of_file(files, index);
  if (files.stamped_file(index).stamp != file.stamp) return checksum;  // it changed while it was read
  known_[file.path] = {file.stamp, checksum};
  is_new_ = true;
  return checksum;
}

void FileChecksums::store() {
  if (!std::exchange(is_new_, false)) return;
  std::string lines;
  constexpr auto kReplace = json::error_handler_t::replace;  // a name that is not UTF-8 is read again next time
  for (const auto& [path, known] : known_)
    lines += json::array({path, known.stamp, known.checksum}).dump(-1, ' ', false, kReplace) + "\n";
  try {
    create_folder(std::filesystem::path(path_).parent_path().string());
    write_file(path_, lines);
  } catch (const Error&) {  // the next start reads the files again
  }
}

}  // namespace colossal::run
