// clang-format off: jpeglib.h wants what stands before it.
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"

namespace colossal::data {
namespace {

constexpr int kMaxScans = 500;  // limits the time, because each scan of a hostile file covers the whole picture
constexpr int kExifMarker = JPEG_APP0 + 1;

/// The state of libjpeg's callbacks. libjpeg's struct is the base, so a pointer to it is a pointer to this struct. No
/// object with a destructor is created after setjmp, because longjmp would not run the destructor.
struct JpegErrors : jpeg_error_mgr {
  jmp_buf back;
  bool is_damaged;
  char message[JMSG_LENGTH_MAX];
};

struct JpegSource : jpeg_source_mgr {
  bool is_cut_short;
};

struct JpegReading {
  jpeg_decompress_struct jpeg{};
  JpegErrors errors{};
  JpegSource source{};
  jpeg_progress_mgr progress{};
  Picture picture;
  std::vector<uint8_t> row;  // a row of CMYK, or a row that is decoded and dropped
  bool is_too_large = false;
  int orientation = 1;
};

[[noreturn]] void jpeg_fails(j_common_ptr jpeg) {
  auto* errors = static_cast<JpegErrors*>(jpeg->err);
  errors->format_message(jpeg, errors->message);
  longjmp(errors->back, 1);
}

/// Records damage of a scan, because libjpeg continues after it with gray or guessed pixels. Other warnings, about
/// bytes between markers or unknown versions, do not concern the pixels.
void jpeg_warns(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  auto* errors = static_cast<JpegErrors*>(jpeg->err);
  const int code = errors->msg_code;
  const bool is_damage =
      code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC;
  if (is_damage && !errors->is_damaged) errors->format_message(jpeg, errors->message);
  errors->is_damaged = errors->is_damaged || is_damage;
}

void jpeg_begins(j_decompress_ptr) {}

/// Supplies an end marker if the bytes end before the picture. libjpeg fills the missing pixels with gray, and
/// decode_jpeg() reports the error afterwards.
boolean jpeg_wants_more(j_decompress_ptr jpeg) {
  static const JOCTET kEnd[] = {0xFF, JPEG_EOI};
  auto* source = static_cast<JpegSource*>(jpeg->src);
  source->is_cut_short = true;
  source->next_input_byte = kEnd;
  source->bytes_in_buffer = 2;
  return TRUE;
}

void jpeg_skips(j_decompress_ptr jpeg, long count) {
  if (count <= 0) return;
  auto* source = static_cast<JpegSource*>(jpeg->src);
  if (static_cast<size_t>(count) > source->bytes_in_buffer) {
    jpeg_wants_more(jpeg);
    return;
  }
  source->next_input_byte += count;
  source->bytes_in_buffer -= static_cast<size_t>(count);
}

void jpeg_counts_scans(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMaxScans) return;
  auto* errors = static_cast<JpegErrors*>(jpeg->err);
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMaxScans);
  longjmp(errors->back, 1);
}

int orientation_of(j_decompress_ptr jpeg) {
  constexpr std::string_view kExif{"Exif\0\0", 6};
  for (auto* marker = jpeg->marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker == kExifMarker && data.starts_with(kExif)) return exif_orientation(data.substr(kExif.size()));
  }
  return 1;
}

/// Converts a row of CMYK to RGB. Adobe's CMYK is stored inverted, so 255 is no ink.
void inks_to_rgb(const std::vector<uint8_t>& inks, uint8_t* rgb) {
  for (size_t i = 0; i + 3 < inks.size(); i += 4)
    for (size_t c = 0; c < 3; ++c) {
      const int key = inks[i + 3], ink = (255 - inks[i + c]) * key + 128;  // rounds ink * key / 255 as Pillow does
      *rgb++ = static_cast<uint8_t>(std::clamp(key - ((ink >> 8) + ink) / 256, 0, 255));
    }
}

/// A range of rows or columns.
struct Span {
  int64_t first, end;
};

/// Returns the pixels [first, end) of `limit` that resample() needs for a part, and their neighbours from which chroma
/// is interpolated.
Span needed(double begin, double length, int64_t count, int64_t limit) {
  constexpr int64_t kChroma = 4;
  const int64_t margin = resample_margin(length, count) + kChroma;
  const auto first = static_cast<int64_t>(std::floor(begin)) - margin,
             end = static_cast<int64_t>(std::ceil(begin + length)) + margin;
  return {std::clamp<int64_t>(first, 0, limit - 1), std::clamp<int64_t>(end, 1, limit)};
}

/// Sets the smallest size at which the part still has at least the width and height of the result.
void set_scale(j_decompress_ptr jpeg, const Crop& crop) {
  const auto is_enough = [&](unsigned eighths) {
    return crop.box.width * eighths / 8 >= static_cast<double>(crop.width) &&
           crop.box.height * eighths / 8 >= static_cast<double>(crop.height);
  };
  jpeg->scale_num = 8;
  jpeg->scale_denom = 8;
  while (jpeg->scale_num > 1 && is_enough(jpeg->scale_num / 2)) jpeg->scale_num /= 2;
}

void read_jpeg_rows(JpegReading& reading, Span rows) {
  j_decompress_ptr jpeg = &reading.jpeg;
  Picture& picture = reading.picture;
  picture.rgb.resize(picture.width * picture.height * 3);
  const bool has_inks = jpeg->out_color_space == JCS_CMYK;
  reading.row.resize(picture.width * 4);
  if (rows.first > 0) jpeg_skip_scanlines(jpeg, static_cast<JDIMENSION>(rows.first));
  while (jpeg->output_scanline < rows.end) {
    uint8_t* to = picture.rgb.data() + (jpeg->output_scanline - rows.first) * picture.width * 3;
    JSAMPROW row = has_inks ? reading.row.data() : to;
    jpeg_read_scanlines(jpeg, &row, 1);
    if (has_inks) inks_to_rgb(reading.row, to);
  }
  // libjpeg decodes the codes of skipped rows, and so finds damage there, only if a later row is read. The last row is
  // therefore read.
  if (jpeg->output_scanline + 1 < jpeg->output_height)
    jpeg_skip_scanlines(jpeg, jpeg->output_height - 1 - jpeg->output_scanline);
  JSAMPROW last = reading.row.data();
  if (jpeg->output_scanline < jpeg->output_height) jpeg_read_scanlines(jpeg, &last, 1);
}

/// Returns true if the end marker of the picture is among the bytes that were not read. A scan cannot contain that
/// marker.
bool has_end(const JpegSource& source) {
  const std::string_view rest(reinterpret_cast<const char*>(source.next_input_byte), source.bytes_in_buffer);
  return rest.rfind("\xff\xd9") != std::string_view::npos;
}

/// Does all work that may jump back to setjmp. Returns false after an error.
bool read_jpeg(JpegReading& reading, std::string_view bytes, const CropFunction& crop) {
  if (setjmp(reading.errors.back) != 0) return false;
  j_decompress_ptr jpeg = &reading.jpeg;
  jpeg_create_decompress(jpeg);
  reading.source.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  reading.source.bytes_in_buffer = bytes.size();
  jpeg->src = &reading.source;
  jpeg->progress = &reading.progress;
  jpeg_save_markers(jpeg, kExifMarker, 0xFFFF);
  jpeg_read_header(jpeg, TRUE);
  Picture& picture = reading.picture;
  const int64_t full_width = picture.width = jpeg->image_width, full_height = picture.height = jpeg->image_height;
  reading.is_too_large = full_width * full_height > kMaxPixels;
  if (reading.is_too_large) return false;
  reading.orientation = orientation_of(jpeg);
  const bool has_inks = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  jpeg->out_color_space = has_inks ? JCS_CMYK : JCS_RGB;
  const bool swaps = reading.orientation >= 5;
  Crop part{};
  if (crop) set_scale(jpeg, part = swaps ? crop(full_height, full_width) : crop(full_width, full_height));
  jpeg_start_decompress(jpeg);
  Span columns{0, jpeg->output_width}, rows{0, jpeg->output_height};
  picture.scale_x = static_cast<double>(columns.end) / static_cast<double>(full_width);
  picture.scale_y = static_cast<double>(rows.end) / static_cast<double>(full_height);
  if (crop && reading.orientation == 1) {  // with another orientation the whole picture is decoded and turned
    columns = needed(part.box.left * picture.scale_x, part.box.width * picture.scale_x, part.width, columns.end);
    rows = needed(part.box.top * picture.scale_y, part.box.height * picture.scale_y, part.height, rows.end);
    auto left = static_cast<JDIMENSION>(columns.first), width = static_cast<JDIMENSION>(columns.end - columns.first);
    jpeg_crop_scanline(jpeg, &left, &width);  // may move the start to the left
    columns = {left, int64_t{left} + width};
  }
  picture.left = columns.first;
  picture.top = rows.first;
  picture.width = columns.end - columns.first;
  picture.height = rows.end - rows.first;
  read_jpeg_rows(reading, rows);
  // A file of several scans was read to its end before the first row was decoded, so it needs no check.
  if (!jpeg_has_multiple_scans(jpeg) && jpeg->unread_marker != JPEG_EOI && !has_end(reading.source))
    reading.source.is_cut_short = true;
  return true;
}

}  // namespace

Picture decode_jpeg(std::string_view bytes, const std::string& name, const CropFunction& crop, int& orientation) {
  JpegReading reading;
  reading.jpeg.err = jpeg_std_error(&reading.errors);
  reading.errors.error_exit = jpeg_fails;
  reading.errors.emit_message = jpeg_warns;
  reading.source.init_source = jpeg_begins;
  reading.source.fill_input_buffer = jpeg_wants_more;
  reading.source.skip_input_data = jpeg_skips;
  reading.source.resync_to_restart = jpeg_resync_to_restart;
  reading.source.term_source = jpeg_begins;
  reading.progress.progress_monitor = jpeg_counts_scans;
  const bool done = read_jpeg(reading, bytes, crop);
  const bool is_cut_short = reading.source.is_cut_short;
  jpeg_destroy_decompress(&reading.jpeg);
  require(!reading.is_too_large, "data", name, " has ", reading.picture.width, " x ", reading.picture.height,
          " pixels, more than ", kMaxPixels);
  require(done, "data", name, " cannot be read as JPEG: ", static_cast<const char*>(reading.errors.message));
  require(!is_cut_short, "data", name, " is cut short");
  require(!reading.errors.is_damaged, "data", name, " is damaged: ", static_cast<const char*>(reading.errors.message));
  orientation = reading.orientation;
  return std::move(reading.picture);
}

}  // namespace colossal::data
