# docker build -t ojs-throttle .
# Say what it is built from by --build-arg OJS_THROTTLE_BUILD="$(git log -1 --format='%h of %cs')". For another
# processor too: docker buildx build --platform linux/amd64,linux/arm64 . Both images below are lists of both.
# docker run --rm --stop-timeout 30 -p 8080:8080 -v "$PWD/conf:/etc/ojs-throttle:ro" ojs-throttle
FROM rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
# What `--version` names.
ARG OJS_THROTTLE_BUILD
RUN .ci/release

# glibc, roots for TLS, no shell.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
ARG OJS_THROTTLE_BUILD
COPY --from=build /src/target/shipped/dist/ojs-throttle /usr/local/bin/ojs-throttle
COPY LICENSE /usr/share/doc/ojs-throttle/LICENSE
USER 65532:65532
LABEL org.opencontainers.image.title="ojs-throttle" \
      org.opencontainers.image.description="Rate limits and backpressure for any Open Job Spec backend" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${OJS_THROTTLE_BUILD}"
# 8080: SDKs. 9091: metrics and health.
EXPOSE 8080 9091
STOPSIGNAL SIGTERM
# It finds the admin port as the sidecar does: in the file, or in OJS_THROTTLE_ADMIN_LISTEN.
HEALTHCHECK --interval=10s --timeout=12s --start-period=30s CMD ["/usr/local/bin/ojs-throttle", "healthcheck", "--config", "/etc/ojs-throttle/throttle.toml"]
ENTRYPOINT ["/usr/local/bin/ojs-throttle"]
# The folder is what to mount: a file that is mounted by itself does not follow its changes.
CMD ["run", "--config", "/etc/ojs-throttle/throttle.toml"]
