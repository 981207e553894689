#include "colossal/data/videos/libav.h"

#include <dlfcn.h>

#include "colossal/base/error.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {
namespace {

/// One of the libraries, which stays loaded.
class LibavLibrary {
 public:
  LibavLibrary(const char* name, int version) : file_(concat("lib", name, ".so.", version)) {
    handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(handle_ != nullptr, "data", "videos other than GIF and y4m need FFmpeg's ", file_,
            ", which cannot be loaded; ",
            "install libavformat, libavcodec and libswscale of that version: ", dlerror());
  }

  template <class Function>
  void bind(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    require(function != nullptr, "data", file_, " has no ", name, "; install another build of FFmpeg's libraries");
  }

 private:
  std::string file_;
  void* handle_ = nullptr;
};

void bind_util(Libav& av) {
  const LibavLibrary util("avutil", LIBAVUTIL_VERSION_MAJOR);
  util.bind("av_strerror", av.strerror);
  util.bind("av_malloc", av.malloc);
  util.bind("av_freep", av.freep);
  util.bind("av_dict_set", av.dict_set);
  util.bind("av_dict_free", av.dict_free);
  util.bind("av_opt_set", av.opt_set);
  util.bind("av_frame_alloc", av.frame_alloc);
  util.bind("av_frame_free", av.frame_free);
  util.bind("av_frame_get_buffer", av.frame_get_buffer);
  util.bind("av_frame_make_writable", av.frame_make_writable);
  util.bind("av_log_set_level", av.log_set_level);
}

void bind_codec(Libav& av) {
  const LibavLibrary codec("avcodec", LIBAVCODEC_VERSION_MAJOR);
  codec.bind("av_packet_alloc", av.packet_alloc);
  codec.bind("av_packet_free", av.packet_free);
  codec.bind("av_packet_unref", av.packet_unref);
  codec.bind("av_packet_rescale_ts", av.packet_rescale_ts);
  codec.bind("avcodec_find_encoder", av.find_encoder);
  codec.bind("avcodec_alloc_context3", av.alloc_codec);
  codec.bind("avcodec_free_context", av.free_codec);
  codec.bind("avcodec_parameters_to_context", av.parameters_to_codec);
  codec.bind("avcodec_parameters_from_context", av.parameters_from_codec);
  codec.bind("avcodec_open2", av.open_codec);
  codec.bind("avcodec_send_packet", av.send_packet);
  codec.bind("avcodec_receive_frame", av.receive_frame);
  codec.bind("avcodec_send_frame", av.send_frame);
  codec.bind("avcodec_receive_packet", av.receive_packet);
  codec.bind("avcodec_flush_buffers", av.flush_buffers);
}

void bind_format(Libav& av) {
  const LibavLibrary format("avformat", LIBAVFORMAT_VERSION_MAJOR);
  format.bind("avio_alloc_context", av.alloc_io);
  format.bind("avio_context_free", av.free_io);
  format.bind("avformat_alloc_context", av.alloc_format);
  format.bind("avformat_free_context", av.free_format);
  format.bind("avformat_open_input", av.open_input);
  format.bind("avformat_close_input", av.close_input);
  format.bind("avformat_find_stream_info", av.find_stream_info);
  format.bind("av_find_best_stream", av.find_best_stream);
  format.bind("av_stream_get_side_data", av.stream_side_data);
  format.bind("av_read_frame", av.read_packet);
  format.bind("av_seek_frame", av.seek_frame);
  format.bind("avformat_alloc_output_context2", av.alloc_output);
  format.bind("avformat_new_stream", av.new_stream);
  format.bind("avformat_write_header", av.write_header);
  format.bind("av_interleaved_write_frame", av.write_packet);
  format.bind("av_write_trailer", av.write_trailer);
}

void bind_scale(Libav& av) {
  const LibavLibrary scale("swscale", LIBSWSCALE_VERSION_MAJOR);
  scale.bind("sws_getCachedContext", av.cached_scaler);
  scale.bind("sws_freeContext", av.free_scaler);
  scale.bind("sws_getCoefficients", av.coefficients);
  scale.bind("sws_setColorspaceDetails", av.set_colorspace);
  scale.bind("sws_scale", av.scale);
}

Libav load_libav() {
  Libav av{};
  bind_util(av);
  bind_codec(av);
  bind_format(av);
  bind_scale(av);
  av.log_set_level(AV_LOG_QUIET);  // errors have messages of their own
  return av;
}

}  // namespace

const Libav& libav() {
  static const Libav loaded = load_libav();
  return loaded;
}

std::string libav_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  libav().strerror(code, text, sizeof text);
  return text;
}

bool reads_videos() {
  try {
    libav();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace colossal::data
