// y4m (mjpegtools, man 5 yuv4mpeg): a line of parameters, and of each frame a line and its planes.
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/data/videos/clip_encoder.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {
namespace {

/// Factors of ITU-R BT.601: the shares of red and blue in brightness, and the range of its differences.
constexpr float kRed = 0.299F, kBlue = 0.114F, kGreen = 1 - kRed - kBlue;
constexpr float kBlueRange = 2 * (1 - kBlue), kRedRange = 2 * (1 - kRed);

/// A colour as red, green, blue or as brightness and two differences of colour.
using Triple = std::array<uint8_t, 3>;

uint8_t rounded_byte(float value) { return static_cast<uint8_t>(std::lround(std::clamp(value, 0.0F, 255.0F))); }

/// Returns a colour as brightness 16 to 235 and differences 16 to 240, the narrow range that programs expect in y4m.
Triple brightness_of_rgb(const Triple& rgb) {
  const auto red = static_cast<float>(rgb[0]), green = static_cast<float>(rgb[1]), blue = static_cast<float>(rgb[2]);
  const float y = kRed * red + kGreen * green + kBlue * blue;
  return {rounded_byte(16 + y * 219 / 255), rounded_byte(128 + (blue - y) / kBlueRange * 224 / 255),
          rounded_byte(128 + (red - y) / kRedRange * 224 / 255)};
}

/// Returns the inverse. With `is_full` all three are in the range 0 to 255, as in JPEG.
Triple rgb_of_brightness(const Triple& yuv, bool is_full) {
  const float darkest = is_full ? 0 : 16, y = (static_cast<float>(yuv[0]) - darkest) * 255 / (is_full ? 255 : 219);
  const float range = is_full ? 1 : 255.0F / 224;
  const float blue = y + (static_cast<float>(yuv[1]) - 128) * range * kBlueRange,
              red = y + (static_cast<float>(yuv[2]) - 128) * range * kRedRange;
  return {rounded_byte(red), rounded_byte((y - kRed * red - kBlue * blue) / kGreen), rounded_byte(blue)};
}

/// How many pixels share a value of the two planes of colour, as powers of two; without `has_colour` there are none.
struct Y4mSampling {
  const char* name;
  int across, down;
  bool has_colour = true;
};

constexpr std::array<Y4mSampling, 8> kY4mSamplings{{{"420", 1, 1},
                                                    {"420jpeg", 1, 1},
                                                    {"420mpeg2", 1, 1},
                                                    {"420paldv", 1, 1},
                                                    {"422", 1, 0},
                                                    {"411", 2, 0},
                                                    {"444", 0, 0},
                                                    {"mono", 0, 0, false}}};

struct Y4mHeader {
  PictureSize size{};
  double fps = 0;
  Y4mSampling sampling = kY4mSamplings[0];
  bool is_full = false;  // values from 0 to 255

  int64_t colour_width() const { return (size.width + (1 << sampling.across) - 1) >> sampling.across; }
  int64_t colour_height() const { return (size.height + (1 << sampling.down) - 1) >> sampling.down; }
  int64_t colour_bytes() const { return sampling.has_colour ? colour_width() * colour_height() : 0; }
  int64_t frame_bytes() const { return size.width * size.height + 2 * colour_bytes(); }
};

Y4mSampling y4m_sampling(const std::string& word, const std::string& name) {
  for (const Y4mSampling& sampling : kY4mSamplings)
    if (word == sampling.name) return sampling;
  throw Error("data", concat(name, " has planes of the kind C", printable(word),
                             "; y4m files must have 8 bits and C420, ", "C422, C411, C444 or Cmono"));
}

double y4m_rate(const std::string& word, const std::string& name) {
  const size_t colon = word.find(':');
  const int64_t frames = parse_id(word.substr(0, colon)).value_or(0);
  const int64_t seconds = colon == std::string::npos ? 0 : parse_id(word.substr(colon + 1)).value_or(0);
  require(frames >= 1 && seconds >= 1, "data", name, " has no rate of frames, such as F24:1: got F", printable(word));
  return static_cast<double>(frames) / static_cast<double>(seconds);
}

Y4mHeader y4m_header(const std::string& line, const std::string& name) {
  Y4mHeader header;
  std::istringstream words(line);
  std::string word;
  words >> word;  // the mark of the format, by which it was found
  while (words >> word) {
    const std::string value = word.substr(1);
    const auto number = parse_id(value);
    if (word[0] == 'W') header.size.width = number.value_or(0);
    if (word[0] == 'H') header.size.height = number.value_or(0);
    if (word[0] == 'F') header.fps = y4m_rate(value, name);
    if (word[0] == 'C') header.sampling = y4m_sampling(value, name);
    if (word == "XCOLORRANGE=FULL") header.is_full = true;
  }
  require(header.fps > 0, "data", name, " has no rate of frames, such as F24:1");
  return header;
}

class Y4mReader final : public VideoReader {
 public:
  Y4mReader(const PictureBytes& bytes, const std::string& name) : VideoReader(name), bytes_(bytes) {
    int64_t at = 0;
    header_ = y4m_header(line_at(at), name);
    set_size(header_.size);
    while (at < bytes_.size) {
      const std::string line = line_at(at);
      require(line == "FRAME" || line.starts_with("FRAME "), "data", name, " is damaged: no frame begins at byte ", at);
      require(header_.frame_bytes() <= bytes_.size - at, "data", name, " is cut short within frame ", places_.size());
      places_.push_back(at);
      at += header_.frame_bytes();
    }
    set_seconds(static_cast<double>(places_.size()) / header_.fps);
  }

  bool next() override {
    if (frame_ + 1 >= static_cast<int64_t>(places_.size())) return false;
    ++frame_;
    return true;
  }

  FrameTime time() const override {
    return {static_cast<double>(frame_) / header_.fps, static_cast<double>(frame_ + 1) / header_.fps};
  }

  Picture picture() const override {
    std::vector<uint8_t> planes(static_cast<size_t>(header_.frame_bytes()));
    bytes_.read(places_.at(static_cast<size_t>(frame_)), header_.frame_bytes(), reinterpret_cast<char*>(planes.data()));
    const auto [width, height] = header_.size;
    const auto [_, across, down, has_colour] = header_.sampling;
    const uint8_t* blue = planes.data() + width * height;
    const uint8_t* red = blue + header_.colour_bytes();
    Picture picture{width, height, std::vector<uint8_t>(width * height * 3)};
    uint8_t* out = picture.rgb.data();
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x, out += 3) {
        const int64_t shared = (y >> down) * header_.colour_width() + (x >> across);
        const Triple yuv{planes[y * width + x], has_colour ? blue[shared] : uint8_t{128},
                         has_colour ? red[shared] : uint8_t{128}};
        const Triple rgb = rgb_of_brightness(yuv, header_.is_full);
        std::copy(rgb.begin(), rgb.end(), out);
      }
    return picture;
  }

  void seek(double seconds) override {
    const auto frame = static_cast<int64_t>(std::floor(std::clamp(seconds, 0.0, this->seconds()) * header_.fps));
    frame_ = std::min(frame, static_cast<int64_t>(places_.size())) - 1;
  }

 private:
  /// Returns the line at a place without its end, and moves behind it.
  std::string line_at(int64_t& at) const {
    constexpr int64_t kMaxLine = 1024;
    std::string line(static_cast<size_t>(std::min(kMaxLine, bytes_.size - at)), '\0');
    bytes_.read(at, static_cast<int64_t>(line.size()), line.data());
    const size_t end = line.find('\n');
    require(end != std::string::npos, "data", name(), " is damaged or cut short: no line of y4m ends after byte ", at);
    at += static_cast<int64_t>(end) + 1;
    return line.substr(0, end);
  }

  PictureBytes bytes_;
  Y4mHeader header_;
  std::vector<int64_t> places_;  // of the planes of each frame
  int64_t frame_ = -1;
};

/// Writes one value of colour for each pixel (C444): nothing is lost but the rounding, and sides may be odd.
class Y4mEncoder final : public ClipEncoder {
 public:
  Y4mEncoder(const ClipFormat& format, ByteSink sink) : sink_(std::move(sink)) {
    const Rate rate = rate_of(format.fps);
    sink_(concat("YUV4MPEG2 W", format.width, " H", format.height, " F", rate.frames, ":", rate.seconds,
                 " Ip A1:1 C444\n"));
  }

  void add(const Picture& frame) override {
    const size_t pixels = frame.rgb.size() / 3;
    std::string bytes = "FRAME\n";
    const size_t planes = bytes.size();
    bytes.resize(planes + 3 * pixels);
    for (size_t i = 0; i < pixels; ++i) {
      const Triple yuv = brightness_of_rgb({frame.rgb[3 * i], frame.rgb[3 * i + 1], frame.rgb[3 * i + 2]});
      for (size_t c = 0; c < 3; ++c) bytes[planes + c * pixels + i] = static_cast<char>(yuv[c]);
    }
    sink_(bytes);
  }

  void finish() override {}

 private:
  ByteSink sink_;
};

}  // namespace

std::unique_ptr<VideoReader> open_y4m(const PictureBytes& bytes, const std::string& name) {
  return std::make_unique<Y4mReader>(bytes, name);
}

std::unique_ptr<ClipEncoder> encode_y4m(const ClipFormat& format, ByteSink sink) {
  return std::make_unique<Y4mEncoder>(format, std::move(sink));
}

}  // namespace colossal::data
