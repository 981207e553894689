// clang-format off: jpeglib.h wants what stands before it.
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/picture.h"

namespace colossal::data {
namespace {

constexpr int kMostScans = 500;  // each goes over the whole picture: of a hostile one for hours
constexpr int kExifMarker = JPEG_APP0 + 1;

/// What libjpeg's callbacks work on; its structs come first, so that theirs is a pointer to this. Nothing with a
/// destructor is made below setjmp: a jump back would not run it.
struct JpegErrors : jpeg_error_mgr {
  jmp_buf back;
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
  std::vector<uint8_t> inks;  // a row of CMYK
  bool is_too_large = false;
  int orientation = 1;
};

[[noreturn]] void jpeg_fails(j_common_ptr jpeg) {
  auto* errors = static_cast<JpegErrors*>(jpeg->err);
  errors->format_message(jpeg, errors->message);
  longjmp(errors->back, 1);
}

void jpeg_warns(j_common_ptr jpeg, int level) {
  if (level < 0) ++jpeg->err->num_warnings;
}

void jpeg_begins(j_decompress_ptr) {}

/// The bytes are at their end before the picture: what is missing comes out gray, and is refused afterwards.
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
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
  auto* errors = static_cast<JpegErrors*>(jpeg->err);
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMostScans);
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

/// Adobe's CMYK is stored inverted: 255 is no ink.
void inks_to_rgb(const std::vector<uint8_t>& inks, uint8_t* rgb) {
  for (size_t i = 0; i + 3 < inks.size(); i += 4)
    for (size_t c = 0; c < 3; ++c) {
      const int key = inks[i + 3], ink = (255 - inks[i + c]) * key + 128;  // Pillow's rounding of ink * key / 255
      *rgb++ = static_cast<uint8_t>(std::clamp(key - ((ink >> 8) + ink) / 256, 0, 255));
    }
}

void set_scale(j_decompress_ptr jpeg, int64_t least_side) {
  const int64_t shorter = std::min(jpeg->image_width, jpeg->image_height);
  jpeg->scale_num = 8;
  jpeg->scale_denom = 8;
  while (jpeg->scale_num > 1 && shorter * (jpeg->scale_num / 2) / 8 >= least_side) jpeg->scale_num /= 2;
}

bool read_jpeg(JpegReading& reading, std::string_view bytes, const LeastSide& least_side) {
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
  picture.width = picture.full_width = jpeg->image_width;
  picture.height = picture.full_height = jpeg->image_height;
  reading.is_too_large = int64_t{jpeg->image_width} * jpeg->image_height > kMostPixels;
  if (reading.is_too_large) return false;
  reading.orientation = orientation_of(jpeg);
  const bool has_inks = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  jpeg->out_color_space = has_inks ? JCS_CMYK : JCS_RGB;
  const bool swaps = reading.orientation >= 5;
  if (least_side)
    set_scale(jpeg, swaps ? least_side(picture.height, picture.width) : least_side(picture.width, picture.height));
  jpeg_start_decompress(jpeg);
  const int64_t width = picture.width = jpeg->output_width, height = picture.height = jpeg->output_height;
  picture.rgb.resize(width * height * 3);
  if (has_inks) reading.inks.resize(width * 4);
  while (jpeg->output_scanline < jpeg->output_height) {
    uint8_t* to = picture.rgb.data() + int64_t{jpeg->output_scanline} * width * 3;
    JSAMPROW row = has_inks ? reading.inks.data() : to;
    jpeg_read_scanlines(jpeg, &row, 1);
    if (has_inks) inks_to_rgb(reading.inks, to);
  }
  return true;
}

}  // namespace

Picture decode_jpeg(std::string_view bytes, const std::string& name, const LeastSide& least_side, int& orientation) {
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
  const bool done = read_jpeg(reading, bytes, least_side);
  const bool is_cut_short = reading.source.is_cut_short;
  jpeg_destroy_decompress(&reading.jpeg);
  require(!reading.is_too_large, "data", name, " has ", reading.picture.width, " x ", reading.picture.height,
          " pixels, more than ", kMostPixels);
  require(done, "data", name, " cannot be read as JPEG: ", static_cast<const char*>(reading.errors.message));
  require(!is_cut_short, "data", name, " is cut short");
  orientation = reading.orientation;
  return std::move(reading.picture);
}

}  // namespace colossal::data
