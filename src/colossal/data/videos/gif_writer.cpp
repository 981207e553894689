#include <gif_lib.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/videos/clip_encoder.h"
#include "colossal/data/videos/palette.h"

namespace colossal::data {
namespace {

/// The state of giflib's callback.
struct GifOutput {
  ByteSink sink;
  std::exception_ptr failure{};
};

int write_gif_bytes(GifFileType* gif, const GifByteType* bytes, int count) {
  auto* output = static_cast<GifOutput*>(gif->UserData);
  try {
    output->sink({reinterpret_cast<const char*>(bytes), static_cast<size_t>(count)});
  } catch (...) {  // must not pass through C
    output->failure = std::current_exception();
    return 0;
  }
  return count;
}

/// Returns a table of giflib's form: the number of its colours is a power of two.
std::unique_ptr<ColorMapObject, void (*)(ColorMapObject*)> gif_colours(const PalettePicture& picture) {
  int size = 2;
  while (size < static_cast<int>(picture.colours.size())) size *= 2;
  std::unique_ptr<ColorMapObject, void (*)(ColorMapObject*)> map(GifMakeMapObject(size, nullptr), GifFreeMapObject);
  require(map != nullptr, "data", "no memory for the colours of a GIF");
  for (size_t i = 0; i < picture.colours.size(); ++i)
    map->Colors[i] = {picture.colours[i][0], picture.colours[i][1], picture.colours[i][2]};
  return map;
}

struct ClosesGif {
  void operator()(GifFileType* gif) const {
    int code = 0;
    EGifCloseFile(gif, &code);
  }
};

class GifEncoder final : public ClipEncoder {
 public:
  GifEncoder(const ClipFormat& format, ByteSink sink) : output_{std::move(sink)} {
    require(format.fps <= kMostGifRate, "data", "a GIF must have at most ", kMostGifRate, " frames a second: got ",
            format.fps, "; write .y4m or .mp4");
    require(format.fps >= kLeastGifRate, "data", "a GIF must have at least ", kLeastGifRate, " frames a second: got ",
            format.fps, "; write .y4m or .mp4");
    rate_ = rate_of(format.fps);
    int code = 0;
    gif_.reset(EGifOpen(&output_, write_gif_bytes, &code));
    require(gif_ != nullptr, "data", "no memory for a GIF");
    EGifSetGifVersion(gif_.get(), true);
    check(
        EGifPutScreenDesc(gif_.get(), static_cast<int>(format.width), static_cast<int>(format.height), 8, 0, nullptr));
    constexpr GifByteType kForever[] = {1, 0, 0};
    check(EGifPutExtensionLeader(gif_.get(), APPLICATION_EXT_FUNC_CODE));
    check(EGifPutExtensionBlock(gif_.get(), 11, "NETSCAPE2.0"));
    check(EGifPutExtensionBlock(gif_.get(), sizeof kForever, kForever));
    check(EGifPutExtensionTrailer(gif_.get()));
  }

  void add(const Picture& frame) override {
    PalettePicture few = with_palette(frame);
    // The ends are rounded down, so that a frame is on the screen at the time that is its own by the rate.
    const auto end = [&](int64_t frames) { return 100 * frames * rate_.seconds / rate_.frames; };
    const GraphicsControlBlock control{.DisposalMode = DISPOSE_DO_NOT,
                                       .UserInputFlag = false,
                                       .DelayTime = static_cast<int>(end(frames_ + 1) - end(frames_)),
                                       .TransparentColor = NO_TRANSPARENT_COLOR};
    GifByteType bytes[4];
    const size_t size = EGifGCBToExtension(&control, bytes);
    check(EGifPutExtension(gif_.get(), GRAPHICS_EXT_FUNC_CODE, static_cast<int>(size), bytes));
    const auto colours = gif_colours(few);
    check(EGifPutImageDesc(gif_.get(), 0, 0, static_cast<int>(frame.width), static_cast<int>(frame.height), false,
                           colours.get()));
    for (int64_t y = 0; y < frame.height; ++y)
      check(EGifPutLine(gif_.get(), few.pixels.data() + y * frame.width, static_cast<int>(frame.width)));
    ++frames_;
  }

  void finish() override {
    int code = 0;
    const int done = EGifCloseFile(gif_.release(), &code);
    if (output_.failure) std::rethrow_exception(output_.failure);
    require(done == GIF_OK, "data", "a GIF cannot be completed: ", GifErrorString(code));
  }

 private:
  void check(int done) const {
    if (output_.failure) std::rethrow_exception(output_.failure);
    require(done == GIF_OK, "data", "a GIF cannot be written: ", GifErrorString(gif_->Error));
  }

  Rate rate_;
  GifOutput output_;
  std::unique_ptr<GifFileType, ClosesGif> gif_;
  int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipEncoder> encode_gif(const ClipFormat& format, ByteSink sink) {
  return std::make_unique<GifEncoder>(format, std::move(sink));
}

}  // namespace colossal::data
