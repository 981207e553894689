#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/videos/libav.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {
namespace {

// Formats that hold a video in one file. Playlists and others would let a file of unknown origin name further files.
constexpr const char* kLibavFormats = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf";

/// The state of libavformat's callbacks.
struct LibavInput {
  PictureBytes bytes;
  int64_t at = 0;
  std::exception_ptr failure{};
};

int read_libav_bytes(void* state, uint8_t* out, int wanted) {
  auto* input = static_cast<LibavInput*>(state);
  const int64_t count = std::min<int64_t>(wanted, input->bytes.size - input->at);
  if (count <= 0) return AVERROR_EOF;
  try {
    input->bytes.read(input->at, count, reinterpret_cast<char*>(out));
  } catch (...) {  // must not pass through C
    input->failure = std::current_exception();
    return AVERROR(EIO);
  }
  input->at += count;
  return static_cast<int>(count);
}

int64_t seek_libav_bytes(void* state, int64_t offset, int whence) {
  auto* input = static_cast<LibavInput*>(state);
  if (whence == AVSEEK_SIZE) return input->bytes.size;
  const int64_t from = whence == SEEK_CUR ? input->at : whence == SEEK_END ? input->bytes.size : 0;
  if (from + offset < 0 || from + offset > input->bytes.size) return AVERROR(EINVAL);
  return input->at = from + offset;
}

/// Returns the EXIF orientation that stands for the matrix of a video, which maps a pixel (x, y) of the file to
/// (m0 x + m3 y, m1 x + m4 y); turns are rounded to quarters.
int orientation_of_matrix(const int32_t* m) {
  const bool swaps = std::abs(static_cast<int64_t>(m[1])) > std::abs(static_cast<int64_t>(m[0]));
  const bool flips_first = (swaps ? m[3] : m[0]) < 0, flips_second = (swaps ? m[1] : m[4]) < 0;
  constexpr int kPlain[] = {1, 2, 4, 3}, kSwapped[] = {5, 6, 8, 7};
  return (swaps ? kSwapped : kPlain)[(flips_first ? 1 : 0) + (flips_second ? 2 : 0)];
}

struct FreesLibav {
  void operator()(AVFrame* frame) const { libav().frame_free(&frame); }
  void operator()(AVPacket* packet) const { libav().packet_free(&packet); }
  void operator()(AVCodecContext* codec) const { libav().free_codec(&codec); }
  void operator()(AVFormatContext* format) const { libav().close_input(&format); }
  void operator()(SwsContext* scaler) const { libav().free_scaler(scaler); }
  void operator()(AVIOContext* io) const {
    libav().freep(static_cast<void*>(&io->buffer));
    libav().free_io(&io);
  }
};

/// Returns the libraries that read the video `name`.
const Libav& libav_for(const std::string& name) {
  try {
    return libav();
  } catch (const Error& error) {
    throw Error("data", concat(name, ": ", error.message()));
  }
}

class LibavReader final : public VideoReader {
 public:
  LibavReader(const PictureBytes& bytes, const std::string& name)
      : VideoReader(name),
        av_(libav_for(name)),
        input_{bytes},
        packet_(av_.packet_alloc()),
        frame_(av_.frame_alloc()),
        ahead_(av_.frame_alloc()) {
    open_format();
    open_decoder();
    measure();
  }

  bool next() override {
    if (!is_begun_) begin();
    if (!has_ahead_) return false;
    std::swap(frame_, ahead_);
    has_frame_ = true;
    const double begin = stamp_of(*frame_, time_.end), end = begin + length_of(*frame_);
    has_ahead_ = decode();
    time_ = {begin, has_ahead_ ? stamp_of(*ahead_, end) : end};
    return true;
  }

  FrameTime time() const override { return time_; }

  Picture picture() const override {
    const AVFrame& frame = *frame_;
    require(frame.decode_error_flags == 0 && (frame.flags & AV_FRAME_FLAG_CORRUPT) == 0, "data", this->name(),
            " is damaged at ", time_.begin, " seconds");
    require(frame.width == stored_.width && frame.height == stored_.height, "data", this->name(),
            " changes its size at ", time_.begin, " seconds");
    scaler_.reset(av_.cached_scaler(scaler_.release(), frame.width, frame.height,
                                    static_cast<AVPixelFormat>(frame.format), frame.width, frame.height,
                                    AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr));
    require(scaler_ != nullptr, "data", this->name(), " has pixels of a kind that cannot be converted");
    av_.set_colorspace(scaler_.get(), av_.coefficients(frame.colorspace), frame.color_range == AVCOL_RANGE_JPEG,
                       av_.coefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
    const size_t bytes = static_cast<size_t>(stored_.width * stored_.height * 3);
    Picture picture{stored_.width, stored_.height, std::vector<uint8_t>(bytes + kLibavMargin)};
    uint8_t* rows[] = {picture.rgb.data()};
    const int strides[] = {static_cast<int>(3 * stored_.width)};
    av_.scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rows, strides);
    picture.rgb.resize(bytes);
    return orientation_ == 1 ? picture : turn(picture, orientation_);
  }

  void seek(double seconds) override {
    const bool is_ahead = !is_begun_ || (has_frame_ && seconds >= time_.begin);
    if (is_ahead && seconds < time_.end + kNear) return;
    // The index of a file may be by other stamps than those of frames, which may then begin after the wanted time.
    for (double back = 0;; back = 2 * back + 1) {
      const double wanted = std::max(0.0, seconds - back);
      // Headers of unknown origin may promise times that no stamp can have.
      const double exact = wanted / seconds_of_stamp_ + static_cast<double>(first_stamp_);
      const auto stamp = static_cast<int64_t>(std::floor(std::clamp(exact, -0x1p62, 0x1p62)));
      check(av_.seek_frame(format_.get(), stream_->index, stamp, AVSEEK_FLAG_BACKWARD), "cannot be searched");
      av_.flush_buffers(decoder_.get());
      is_flushed_ = false;
      begin();
      if (wanted == 0 || (has_ahead_ && stamp_of(*ahead_, kUnknown) <= seconds + kStampError)) return;
    }
  }

 private:
  static constexpr double kNear = 1;  // seconds that are decoded rather than passed over
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  template <class Object>
  using Own = std::unique_ptr<Object, FreesLibav>;

  /// Throws the error of the file, or one for a negative code of FFmpeg's libraries.
  void check(int code, const char* what) const {
    if (input_.failure) std::rethrow_exception(input_.failure);
    require(code >= 0, "data", name(), " ", what, ": ", libav_error(code));
  }

  void open_format() {
    io_.reset(av_.alloc_io(static_cast<unsigned char*>(av_.malloc(kLibavPiece)), kLibavPiece, 0, &input_,
                           read_libav_bytes, nullptr, seek_libav_bytes));
    AVFormatContext* format = av_.alloc_format();
    require(io_ != nullptr && format != nullptr, "data", "no memory to read ", name());
    format->pb = io_.get();
    AVDictionary* options = nullptr;
    av_.dict_set(&options, "format_whitelist", kLibavFormats, 0);
    const int code = av_.open_input(&format, nullptr, nullptr, &options);  // frees the format if it fails
    av_.dict_free(&options);
    check(code, "is no video that can be read");
    format_.reset(format);
    find_streams();
  }

  /// Reads the beginning of the file, which may decode frames, too: those of too many pixels must not be allocated.
  void find_streams() {
    std::vector<AVDictionary*> options(format_->nb_streams);
    for (AVDictionary*& each : options) av_.dict_set(&each, "max_pixels", std::to_string(kMaxPixels).c_str(), 0);
    const int code = av_.find_stream_info(format_.get(), options.data());
    for (AVDictionary*& each : options) av_.dict_free(&each);
    check(code, "is damaged or cut short");
  }

  void open_decoder() {
    const AVCodec* codec = nullptr;
    const int index = av_.find_best_stream(format_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    check(index, "has no video");
    for (unsigned i = 0; i < format_->nb_streams; ++i)
      if (static_cast<int>(i) != index) format_->streams[i]->discard = AVDISCARD_ALL;
    stream_ = format_->streams[index];
    require((stream_->disposition & AV_DISPOSITION_ATTACHED_PIC) == 0, "data", name(), " has no video, but a cover");
    decoder_.reset(av_.alloc_codec(codec));
    require(decoder_ != nullptr, "data", "no memory to decode ", name());
    check(av_.parameters_to_codec(decoder_.get(), stream_->codecpar), "is damaged");
    decoder_->thread_count = 1;  // the callers are the threads
    decoder_->pkt_timebase = stream_->time_base;
    decoder_->max_pixels = kMaxPixels;
    check(av_.open_codec(decoder_.get(), codec, nullptr), "cannot be decoded");
  }

  void measure() {
    stored_ = {stream_->codecpar->width, stream_->codecpar->height};
    require(stored_.width > 0 && stored_.height > 0, "data", name(), " is damaged or cut short: it says no size");
    const auto* matrix =
        reinterpret_cast<const int32_t*>(av_.stream_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, nullptr));
    if (matrix != nullptr) orientation_ = orientation_of_matrix(matrix);
    set_size(orientation_ >= 5 ? PictureSize{stored_.height, stored_.width} : stored_);
    seconds_of_stamp_ = av_q2d(stream_->time_base);
    if (stream_->start_time != AV_NOPTS_VALUE) first_stamp_ = stream_->start_time;
    double seconds = 0;
    if (stream_->duration > 0)
      seconds = static_cast<double>(stream_->duration) * seconds_of_stamp_;
    else if (format_->duration > 0)
      seconds = static_cast<double>(format_->duration) / AV_TIME_BASE;
    else
      seconds = seconds_of_packets();
    set_seconds(seconds);
  }

  /// Returns the length by the stamps of all packets: headers say none where a recording was written as it was made.
  double seconds_of_packets() {
    double end = 0;
    int code = 0;
    while ((code = av_.read_packet(format_.get(), packet_.get())) >= 0) {
      const double begins = (static_cast<double>(packet_->pts) - static_cast<double>(first_stamp_)) * seconds_of_stamp_,
                   length = static_cast<double>(packet_->duration) * seconds_of_stamp_;
      if (packet_->stream_index == stream_->index && packet_->pts != AV_NOPTS_VALUE)
        end = std::max(end, begins + (length > 0 ? length : kStampError));
      av_.packet_unref(packet_.get());
    }
    if (code != AVERROR_EOF || input_.failure) check(code, "is damaged or cut short");
    check(av_.seek_frame(format_.get(), stream_->index, first_stamp_, AVSEEK_FLAG_BACKWARD), "cannot be searched");
    return end;
  }

  /// Decodes the first frame of this place.
  void begin() {
    is_begun_ = true;
    has_frame_ = false;
    time_ = {};
    has_ahead_ = decode();
  }

  /// Returns the time at which a frame begins, or `otherwise` if it has no stamp.
  double stamp_of(const AVFrame& frame, double otherwise) const {
    if (frame.best_effort_timestamp == AV_NOPTS_VALUE) return otherwise;
    return (static_cast<double>(frame.best_effort_timestamp) - static_cast<double>(first_stamp_)) * seconds_of_stamp_;
  }

  double length_of(const AVFrame& frame) const {
    if (frame.pkt_duration > 0) return static_cast<double>(frame.pkt_duration) * seconds_of_stamp_;
    return stream_->avg_frame_rate.num > 0 ? 1 / av_q2d(stream_->avg_frame_rate) : kStampError;
  }

  /// Decodes the next frame into `ahead_`. Returns false at the end.
  bool decode() {
    for (;;) {
      const int code = av_.receive_frame(decoder_.get(), ahead_.get());
      if (code == AVERROR_EOF) return false;
      if (code != AVERROR(EAGAIN)) {
        check(code, "is damaged");
        return true;
      }
      feed();
    }
  }

  /// Gives the decoder the next packet, or the end.
  void feed() {
    int code = av_.read_packet(format_.get(), packet_.get());
    for (; code >= 0 && packet_->stream_index != stream_->index; code = av_.read_packet(format_.get(), packet_.get()))
      av_.packet_unref(packet_.get());
    if (code == AVERROR_EOF && !input_.failure && !is_flushed_) {
      is_flushed_ = true;
      check(av_.send_packet(decoder_.get(), nullptr), "is damaged");
      return;
    }
    check(code, "is damaged or cut short");
    const bool is_whole = (packet_->flags & AV_PKT_FLAG_CORRUPT) == 0;
    const int sent = av_.send_packet(decoder_.get(), packet_.get());
    av_.packet_unref(packet_.get());
    require(is_whole, "data", name(), " is damaged or cut short");
    check(sent, "is damaged");
  }

  const Libav& av_;
  LibavInput input_;
  Own<AVIOContext> io_;          // after what it reads
  Own<AVFormatContext> format_;  // after what it reads by
  Own<AVCodecContext> decoder_;
  Own<AVPacket> packet_;
  Own<AVFrame> frame_, ahead_;  // this frame and the one after it, whose stamp ends this one
  mutable Own<SwsContext> scaler_;
  AVStream* stream_ = nullptr;
  PictureSize stored_;  // of the frames before they are turned
  int orientation_ = 1;
  double seconds_of_stamp_ = 0;
  int64_t first_stamp_ = 0;
  bool is_begun_ = false, is_flushed_ = false, has_frame_ = false, has_ahead_ = false;
  FrameTime time_{};
};

}  // namespace

std::unique_ptr<VideoReader> open_by_libav(const PictureBytes& bytes, const std::string& name) {
  try {
    libav();
  } catch (const Error& error) {
    throw Error("data", concat(name, " cannot be read: ", error.message()));
  }
  return std::make_unique<LibavReader>(bytes, name);
}

}  // namespace colossal::data
