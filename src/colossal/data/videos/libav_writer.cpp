#include <new>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/videos/clip_encoder.h"
#include "colossal/data/videos/libav.h"

namespace colossal::data {
namespace {

/// A file in memory.
struct LibavOutput {
  std::string bytes{};
  size_t at = 0;
};

int write_libav_bytes(void* state, uint8_t* bytes, int count) {
  auto* output = static_cast<LibavOutput*>(state);
  const auto size = static_cast<size_t>(count);
  try {
    if (output->bytes.size() < output->at + size) output->bytes.resize(output->at + size);
  } catch (const std::bad_alloc&) {  // must not pass through C
    return AVERROR(ENOMEM);
  }
  output->bytes.replace(output->at, size, reinterpret_cast<const char*>(bytes), size);
  output->at += size;
  return count;
}

int64_t seek_libav_output(void* state, int64_t offset, int whence) {
  auto* output = static_cast<LibavOutput*>(state);
  if (whence == AVSEEK_SIZE) return static_cast<int64_t>(output->bytes.size());
  if (whence != SEEK_SET || offset < 0) return AVERROR(EINVAL);
  output->at = static_cast<size_t>(offset);
  return offset;
}

class Mp4Encoder final : public ClipEncoder {
 public:
  Mp4Encoder(const ClipFormat& format, ByteSink sink) : av_(libav()), sink_(std::move(sink)) {
    require(format.width % 2 == 0 && format.height % 2 == 0, "data", "an MP4 must have even sides: got ", format.width,
            " x ", format.height, "; write .gif or .y4m");
    try {
      open(format);
    } catch (...) {
      close();
      throw;
    }
  }

  ~Mp4Encoder() override { close(); }

  void add(const Picture& picture) override {
    check(av_.frame_make_writable(frame_));
    pixels_.assign(picture.rgb.begin(), picture.rgb.end());
    pixels_.resize(pixels_.size() + kLibavMargin);
    const uint8_t* rows[] = {pixels_.data()};
    const int strides[] = {static_cast<int>(3 * picture.width)};
    av_.scale(scaler_, rows, strides, 0, static_cast<int>(picture.height), frame_->data, frame_->linesize);
    frame_->pts = frames_++;
    encode(frame_);
  }

  void finish() override {
    encode(nullptr);
    check(av_.write_trailer(format_));
    sink_(output_.bytes);
  }

 private:
  static void check(int code) { require(code >= 0, "data", "an MP4 cannot be written: ", libav_error(code)); }

  template <class Object>
  static Object* made(Object* object) {
    require(object != nullptr, "data", "no memory to write an MP4");
    return object;
  }

  void open(const ClipFormat& format) {
    io_ = made(av_.alloc_io(static_cast<unsigned char*>(av_.malloc(kLibavPiece)), kLibavPiece, 1, &output_, nullptr,
                            write_libav_bytes, seek_libav_output));
    check(av_.alloc_output(&format_, nullptr, "mp4", nullptr));
    format_->pb = io_;
    format_->flags |= AVFMT_FLAG_CUSTOM_IO;
    open_encoder(format);
    stream_ = made(av_.new_stream(format_, nullptr));
    stream_->time_base = encoder_->time_base;
    stream_->avg_frame_rate = encoder_->framerate;
    check(av_.parameters_from_codec(stream_->codecpar, encoder_));
    check(av_.write_header(format_, nullptr));
    open_frame();
  }

  void open_encoder(const ClipFormat& format) {
    const AVCodec* codec = av_.find_encoder(AV_CODEC_ID_H264);
    const bool is_h264 = codec != nullptr;
    if (!is_h264) codec = av_.find_encoder(AV_CODEC_ID_MPEG4);
    require(codec != nullptr, "data", "FFmpeg's libraries have no encoder for MP4; write .gif or .y4m");
    encoder_ = made(av_.alloc_codec(codec));
    const Rate rate = rate_of(format.fps);
    encoder_->width = static_cast<int>(format.width);
    encoder_->height = static_cast<int>(format.height);
    encoder_->framerate = {static_cast<int>(rate.frames), static_cast<int>(rate.seconds)};
    encoder_->time_base = {static_cast<int>(rate.seconds), static_cast<int>(rate.frames)};
    encoder_->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder_->color_range = AVCOL_RANGE_MPEG;
    encoder_->colorspace = AVCOL_SPC_BT709;
    encoder_->color_primaries = AVCOL_PRI_BT709;
    encoder_->color_trc = AVCOL_TRC_BT709;
    encoder_->thread_count = 1;
    if (is_h264) av_.opt_set(encoder_->priv_data, "crf", "18", 0);  // loss that is hardly seen
    if (!is_h264) encoder_->flags |= AV_CODEC_FLAG_QSCALE, encoder_->global_quality = 2 * FF_QP2LAMBDA;
    if ((format_->oformat->flags & AVFMT_GLOBALHEADER) != 0) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    check(av_.open_codec(encoder_, codec, nullptr));
  }

  void open_frame() {
    packet_ = made(av_.packet_alloc());
    frame_ = made(av_.frame_alloc());
    frame_->format = encoder_->pix_fmt;
    frame_->width = encoder_->width;
    frame_->height = encoder_->height;
    frame_->color_range = encoder_->color_range;
    frame_->colorspace = encoder_->colorspace;
    check(av_.frame_get_buffer(frame_, 0));
    scaler_ = made(av_.cached_scaler(nullptr, frame_->width, frame_->height, AV_PIX_FMT_RGB24, frame_->width,
                                     frame_->height, encoder_->pix_fmt, SWS_BILINEAR, nullptr, nullptr, nullptr));
    av_.set_colorspace(scaler_, av_.coefficients(SWS_CS_DEFAULT), 1, av_.coefficients(SWS_CS_ITU709), 0, 0, 1 << 16,
                       1 << 16);
  }

  /// Encodes a frame, or with null the end, and writes the packets that are ready.
  void encode(const AVFrame* frame) {
    check(av_.send_frame(encoder_, frame));
    for (;;) {
      const int code = av_.receive_packet(encoder_, packet_);
      if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
      check(code);
      av_.packet_rescale_ts(packet_, encoder_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      check(av_.write_packet(format_, packet_));
    }
  }

  void close() {
    av_.free_scaler(scaler_);
    av_.frame_free(&frame_);
    av_.packet_free(&packet_);
    av_.free_codec(&encoder_);
    av_.free_format(format_);
    if (io_ != nullptr) av_.freep(static_cast<void*>(&io_->buffer));
    av_.free_io(&io_);
  }

  const Libav& av_;
  ByteSink sink_;
  LibavOutput output_;
  AVIOContext* io_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVCodecContext* encoder_ = nullptr;
  AVStream* stream_ = nullptr;
  AVPacket* packet_ = nullptr;
  AVFrame* frame_ = nullptr;
  SwsContext* scaler_ = nullptr;
  std::vector<uint8_t> pixels_;  // of the frame
  int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipEncoder> encode_mp4(const ClipFormat& format, ByteSink sink) {
  return std::make_unique<Mp4Encoder>(format, std::move(sink));
}

}  // namespace colossal::data
