#include <gif_lib.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {
namespace {

/// The state of giflib's callback, which reads a few bytes at a time.
struct GifInput {
  PictureBytes bytes;
  int64_t at = 0;       // offset of the next byte
  int64_t begin = 0;    // offset of the piece
  std::string piece{};  // bytes of the file in memory
  std::exception_ptr failure{};
};

int read_gif_bytes(GifFileType* gif, GifByteType* out, int count) {
  constexpr int64_t kPiece = 1 << 16;
  auto* input = static_cast<GifInput*>(gif->UserData);
  try {
    int done = 0;
    while (done < count && input->at < input->bytes.size) {
      if (input->at >= input->begin + static_cast<int64_t>(input->piece.size())) {
        input->begin = input->at;
        input->piece.resize(static_cast<size_t>(std::min(kPiece, input->bytes.size - input->at)));
        input->bytes.read(input->begin, static_cast<int64_t>(input->piece.size()), input->piece.data());
      }
      out[done++] = static_cast<GifByteType>(input->piece[static_cast<size_t>(input->at++ - input->begin)]);
    }
    return done;
  } catch (...) {  // must not pass through C
    input->failure = std::current_exception();
    return 0;
  }
}

/// A GIF file that is read record by record.
class GifRecords {
 public:
  GifRecords(const PictureBytes& bytes, const std::string& name) : name_(name), input_{bytes} {
    int code = 0;
    gif_ = DGifOpen(&input_, read_gif_bytes, &code);
    if (input_.failure) std::rethrow_exception(input_.failure);
    require(gif_ != nullptr, "data", name_, " cannot be read as GIF: ", GifErrorString(code));
  }
  ~GifRecords() {
    int code = 0;
    DGifCloseFile(gif_, &code);
  }
  GifRecords(const GifRecords&) = delete;
  GifRecords& operator=(const GifRecords&) = delete;

  PictureSize screen() const { return {gif_->SWidth, gif_->SHeight}; }
  const GifImageDesc& image() const { return gif_->Image; }
  const GraphicsControlBlock& control() const { return control_; }

  /// Returns the seconds for which the image is shown: a length that is too short to be meant counts as a tenth, as in
  /// browsers.
  double seconds() const { return control_.DelayTime < 2 ? 0.1 : control_.DelayTime / 100.0; }

  /// Returns the colour of the pixels that no image has drawn.
  GifColorType ground() const {
    const ColorMapObject* map = gif_->SColorMap;
    const int index = gif_->SBackGroundColor;
    return map != nullptr && index < map->ColorCount ? map->Colors[index] : GifColorType{0, 0, 0};
  }

  /// Moves behind the head of the next image. Returns false at the end of the file: its trailer or, after an image, a
  /// byte that begins no record, because some programs write other bytes there.
  bool next_image() {
    control_ = {.DisposalMode = DISPOSAL_UNSPECIFIED, .TransparentColor = NO_TRANSPARENT_COLOR};
    for (GifRecordType type = UNDEFINED_RECORD_TYPE;;) {
      const int done = DGifGetRecordType(gif_, &type);
      if (done != GIF_OK && has_images_ && gif_->Error == D_GIF_ERR_WRONG_RECORD) return false;
      check(done);
      if (type == TERMINATE_RECORD_TYPE) return false;
      if (type == EXTENSION_RECORD_TYPE) read_extension();
      if (type != IMAGE_DESC_RECORD_TYPE) continue;
      check(DGifGetImageDesc(gif_));
      has_images_ = true;
      GifFreeSavedImages(gif_);  // a list that giflib keeps of all images
      gif_->SavedImages = nullptr;
      gif_->ImageCount = 0;
      const GifImageDesc& i = image();
      require(i.Width >= 1 && i.Height >= 1 && i.Left + i.Width <= gif_->SWidth && i.Top + i.Height <= gif_->SHeight,
              "data", name_, " is damaged: an image is not within the screen");
      return true;
    }
  }

  /// Passes over the pixels of the image.
  void skip_pixels() {
    int size = 0;
    GifByteType* block = nullptr;
    for (check(DGifGetCode(gif_, &size, &block)); block != nullptr;) check(DGifGetCodeNext(gif_, &block));
  }

  /// Reads the next row of the image, of indices of colours().
  void read_row(std::vector<GifByteType>& row) {
    row.resize(static_cast<size_t>(image().Width));
    check(DGifGetLine(gif_, row.data(), image().Width));
  }

  const ColorMapObject& colours() const {
    const ColorMapObject* map = image().ColorMap != nullptr ? image().ColorMap : gif_->SColorMap;
    require(map != nullptr, "data", name_, " is damaged: an image has no colours");
    return *map;
  }

 private:
  void read_extension() {
    int code = 0;
    GifByteType* block = nullptr;
    check(DGifGetExtension(gif_, &code, &block));
    if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr) DGifExtensionToGCB(block[0], block + 1, &control_);
    while (block != nullptr) check(DGifGetExtensionNext(gif_, &block));
  }

  void check(int done) const {
    if (input_.failure) std::rethrow_exception(input_.failure);
    require(done == GIF_OK, "data", name_, " is damaged or cut short: ", GifErrorString(gif_->Error));
  }

  std::string name_;
  GifInput input_;
  GifFileType* gif_ = nullptr;
  GraphicsControlBlock control_{};
  bool has_images_ = false;
};

/// Returns the rows of an image in the order in which they are stored.
std::vector<int> stored_rows(const GifImageDesc& image) {
  constexpr int kStart[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};  // GIF89a, appendix E
  std::vector<int> rows;
  for (int pass = 0; pass < (image.Interlace ? 4 : 1); ++pass)
    for (int y = image.Interlace ? kStart[pass] : 0; y < image.Height; y += image.Interlace ? kStep[pass] : 1)
      rows.push_back(y);
  return rows;
}

class GifReader final : public VideoReader {
 public:
  GifReader(const PictureBytes& bytes, const std::string& name) : VideoReader(name), bytes_(bytes) {
    restart();
    set_size(records_->screen());
    double seconds = 0;
    for (; records_->next_image(); seconds += records_->seconds()) records_->skip_pixels();
    set_seconds(seconds);
    restart();
  }

  bool next() override {
    if (is_over_ || !records_->next_image()) return !(is_over_ = true);
    if (canvas_.rgb.empty()) clear_canvas();
    dispose();
    const int disposal = records_->control().DisposalMode;
    if (disposal == DISPOSE_PREVIOUS) save(records_->image());
    draw();
    drawn_ = records_->image();
    drawn_.ColorMap = nullptr;  // it ends with the next image
    disposal_ = disposal;
    time_ = {time_.end, time_.end + records_->seconds()};
    return true;
  }

  FrameTime time() const override { return time_; }
  Picture picture() const override { return canvas_; }
  void seek(double seconds) override {
    if (seconds < time_.begin) restart();
  }

 private:
  void restart() {
    records_.emplace(bytes_, name());
    is_over_ = false;
    canvas_ = {};
    disposal_ = DISPOSAL_UNSPECIFIED;
    time_ = {};
  }

  void fill(const GifImageDesc& part, const GifColorType& colour) {
    for (int y = part.Top; y < part.Top + part.Height; ++y)
      for (int x = part.Left; x < part.Left + part.Width; ++x) put(x, y, colour);
  }

  uint8_t* pixel_at(int x, int y) { return &canvas_.rgb[static_cast<size_t>((y * canvas_.width + x) * 3)]; }

  void put(int x, int y, const GifColorType& colour) {
    uint8_t* pixel = pixel_at(x, y);
    pixel[0] = colour.Red, pixel[1] = colour.Green, pixel[2] = colour.Blue;
  }

  void clear_canvas() {
    const auto [width, height] = size();
    canvas_ = {width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3))};
    fill({.Left = 0, .Top = 0, .Width = static_cast<int>(width), .Height = static_cast<int>(height)},
         records_->ground());
  }

  /// Keeps the pixels of a part. Many small images on a large screen must not each cost the whole screen.
  void save(const GifImageDesc& part) {
    before_.clear();
    for (int y = part.Top; y < part.Top + part.Height; ++y)
      before_.insert(before_.end(), pixel_at(part.Left, y), pixel_at(part.Left, y) + 3 * part.Width);
  }

  /// Does with the image before this one what it asked for.
  void dispose() {
    if (disposal_ == DISPOSE_BACKGROUND) fill(drawn_, records_->ground());
    if (disposal_ != DISPOSE_PREVIOUS) return;
    const uint8_t* row = before_.data();
    for (int y = drawn_.Top; y < drawn_.Top + drawn_.Height; ++y, row += 3 * drawn_.Width)
      std::copy_n(row, 3 * drawn_.Width, pixel_at(drawn_.Left, y));
  }

  void draw() {
    const GifImageDesc& image = records_->image();
    const ColorMapObject& colours = records_->colours();
    const int clear = records_->control().TransparentColor;
    std::vector<GifByteType> row;
    for (const int y : stored_rows(image)) {
      records_->read_row(row);
      for (int x = 0; x < image.Width; ++x) {
        const int index = row[static_cast<size_t>(x)];
        require(index == clear || index < colours.ColorCount, "data", name(), " is damaged: a pixel has colour ", index,
                " of ", colours.ColorCount);
        if (index != clear) put(image.Left + x, image.Top + y, colours.Colors[index]);
      }
    }
  }

  PictureBytes bytes_;
  std::optional<GifRecords> records_;
  Picture canvas_;               // what is on the screen; empty before the first image
  std::vector<uint8_t> before_;  // what was in the place of the last image, if that will be taken away again
  GifImageDesc drawn_{};         // the place of the last image
  int disposal_ = DISPOSAL_UNSPECIFIED;
  FrameTime time_{};
  bool is_over_ = false;
};

}  // namespace

std::unique_ptr<VideoReader> open_gif(const PictureBytes& bytes, const std::string& name) {
  return std::make_unique<GifReader>(bytes, name);
}

}  // namespace colossal::data
